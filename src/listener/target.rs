//! The request target and `Host` on the byte level: the form is told apart here, so that all others see a path and, where
//! the target names one, an authority (RFC 9112 §3.2, §3.3).

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, Method, Version};

/// Takes an absolute target apart: path and query (`/…`), and the authority. `None`: it has none (`/…` or `*`).
pub fn split(method: &Method, target: &Bytes) -> Result<Option<(Bytes, Bytes)>, &'static str> {
    if method == Method::CONNECT {
        return Err("CONNECT is not served");
    }
    match target.first() {
        Some(b'/') => Ok(None),
        Some(b'*') if target.len() == 1 && method == Method::OPTIONS => Ok(None),
        _ => absolute(target).map(Some),
    }
}

fn absolute(target: &Bytes) -> Result<(Bytes, Bytes), &'static str> {
    let scheme = [&b"http://"[..], b"https://"]
        .into_iter()
        .find(|scheme| target.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)));
    let Some(scheme) = scheme else { return Err("a request target that is neither a path nor an http URL") };
    let rest = target.slice(scheme.len()..);
    let end = rest.iter().position(|octet| matches!(octet, b'/' | b'?' | b'#')).unwrap_or(rest.len());
    if end == 0 {
        return Err("a request target without an authority");
    }
    let (authority, path) = (rest.slice(..end), rest.slice(end..));
    let path = match path.first() {
        Some(b'/') => path,
        None => Bytes::from_static(b"/"),
        Some(_) => [b"/", &path[..]].concat().into(),
    };
    Ok((path, authority))
}

/// RFC 9112 §3.2: exactly one Host in HTTP/1.1.
pub fn check_host(headers: &HeaderMap, version: Version) -> Result<(), &'static str> {
    let mut lines = headers.get_all(HOST).iter();
    match (lines.next(), lines.next()) {
        (_, Some(_)) => Err("more than one Host"),
        (None, _) if version == Version::HTTP_11 => Err("no Host"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(target: &'static str) -> Result<Option<(String, String)>, &'static str> {
        let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        let split = split(&Method::GET, &Bytes::from_static(target.as_bytes()))?;
        Ok(split.map(|(path, authority)| (text(path), text(authority))))
    }

    #[test]
    fn an_absolute_target_gives_its_path_and_its_authority() {
        assert_eq!(parts("/a?b").unwrap(), None);
        assert_eq!(parts("http://h:80/a?b").unwrap(), Some(("/a?b".into(), "h:80".into())));
        assert_eq!(parts("HTTPS://h").unwrap(), Some(("/".into(), "h".into())));
        assert_eq!(parts("http://h?q").unwrap(), Some(("/?q".into(), "h".into())));
        for wrong in ["login", "*", "http:///a", "ftp://h/", "h:80", ""] {
            assert!(parts(wrong).is_err(), "{wrong}");
        }
    }
}
