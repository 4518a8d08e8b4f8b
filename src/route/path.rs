//! A request target's path in its one normal spelling, which is what routes match, keys are built from and the upstream gets.
//!
//! Promises: total (any bytes give a path or a reason), idempotent, and no allocation for what is normal already. Whatever
//! some upstream may read as another path than we do is refused rather than guessed at. The query is checked for bytes that
//! cannot stand in a target, and otherwise left alone.

use std::borrow::Cow;

/// Why a target is no target; each is the client's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("the target does not begin with a slash")]
    NoSlash,
    #[error("a control character, space or non-ASCII byte in the target")]
    RawByte,
    #[error("a fragment (#) in the target")]
    Fragment,
    #[error("a backslash in the path")]
    Backslash,
    #[error("a percent sign that is not followed by two hexadecimal digits")]
    Escape,
    #[error("an encoded slash or backslash in the path")]
    EncodedSeparator,
    #[error("an encoded control character in the path")]
    EncodedControl,
    #[error("encoded bytes in the path that are not UTF-8")]
    EncodedUtf8,
    #[error("a dot segment with parameters in the path")]
    DotParameter,
}

/// A path in normal form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NormalPath<'a> {
    text: Cow<'a, str>,
}

impl NormalPath<'_> {
    /// What goes on to the upstream; keeps its trailing slash.
    #[must_use]
    pub fn forwarded(&self) -> &str {
        &self.text
    }

    /// What routes and keys see: without the trailing slash, so that `/login/` is `/login`. The root stays `/`.
    #[must_use]
    pub fn matching(&self) -> &str {
        match self.text.strip_suffix('/') {
            None | Some("") => &self.text,
            Some(bare) => bare,
        }
    }

    /// Whether the target was spelt in normal form already, so that it can go on as it came.
    #[must_use]
    pub fn is_verbatim(&self) -> bool {
        matches!(self.text, Cow::Borrowed(_))
    }
}

/// Splits an origin-form target into its path and its query. Every byte of both is visible ASCII and no `#` afterwards.
pub fn split_target(target: &[u8]) -> Result<(&[u8], Option<&str>), PathError> {
    let mut question = None;
    for (at, &byte) in target.iter().enumerate() {
        match byte {
            b'?' if question.is_none() => question = Some(at),
            b'#' => return Err(PathError::Fragment),
            0x21..=0x7e => {}
            _ => return Err(PathError::RawByte),
        }
    }
    let Some(at) = question else { return Ok((target, None)) };
    let query = std::str::from_utf8(&target[at + 1..]).map_err(|_| PathError::RawByte)?;
    Ok((&target[..at], Some(query)))
}

/// Brings a path (of a target, without its query) into normal form.
pub fn normalise(path: &[u8]) -> Result<NormalPath<'_>, PathError> {
    if path.first() != Some(&b'/') {
        return Err(PathError::NoSlash);
    }
    let text = if is_normal(path) {
        // Always succeeds: a path that is normal is ASCII.
        Cow::Borrowed(std::str::from_utf8(path).map_err(|_| PathError::RawByte)?)
    } else {
        Cow::Owned(rewrite(path)?)
    };
    Ok(NormalPath { text })
}

/// What a raw byte means in a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// A character that may stand for itself in a path (RFC 3986 `pchar`).
    Plain,
    Dot,
    Slash,
    Percent,
    /// Visible, but no path may hold it raw: quotes, angle brackets, brackets, braces, caret, backtick, bar. Clients send
    /// them, and upstreams decode the escape to the same character, so both spellings become the escape.
    Encode,
    Refuse(PathError),
}

static CLASSES: [Class; 256] = classes();

const fn classes() -> [Class; 256] {
    let mut table = [Class::Refuse(PathError::RawByte); 256];
    let mut byte = 0x21;
    while byte < 0x7f {
        table[byte] = Class::Plain;
        byte += 1;
    }
    let encoded = b"\"<>[]^`{|}";
    let mut at = 0;
    while at < encoded.len() {
        table[encoded[at] as usize] = Class::Encode;
        at += 1;
    }
    table[b'.' as usize] = Class::Dot;
    table[b'/' as usize] = Class::Slash;
    table[b'%' as usize] = Class::Percent;
    table[b'#' as usize] = Class::Refuse(PathError::Fragment);
    table[b'\\' as usize] = Class::Refuse(PathError::Backslash);
    // A path never holds its own end; one that does was not split from its query.
    table[b'?' as usize] = Class::Refuse(PathError::RawByte);
    table
}

/// One pass that says yes to nearly every path that real clients send. A no is no verdict: `rewrite` gives that.
fn is_normal(path: &[u8]) -> bool {
    let mut at = 0;
    let mut segment = 0;
    while let Some(&byte) = path.get(at) {
        match CLASSES[usize::from(byte)] {
            Class::Slash if at > 0 && segment == at => return false,
            Class::Slash => {
                at += 1;
                segment = at;
            }
            Class::Dot if segment == at && is_dots(&path[at..]) => return false,
            Class::Plain | Class::Dot => at += 1,
            Class::Percent => match Escape::read(&path[at..]) {
                Ok(escape) if escape.keeps_spelling(&path[at..]) => at += escape.length(),
                _ => return false,
            },
            Class::Encode | Class::Refuse(_) => return false,
        }
    }
    true
}

/// Whether a segment that begins with a dot is one that `close_segment` removes or refuses. (An escaped dot is found as an
/// escape that does not keep its spelling.)
fn is_dots(segment: &[u8]) -> bool {
    let rest = segment.strip_prefix(b"..").or_else(|| segment.strip_prefix(b".")).unwrap_or(segment);
    matches!(rest.first(), None | Some(b'/' | b';')) || rest.starts_with(b"%3B")
}

fn rewrite(path: &[u8]) -> Result<String, PathError> {
    let mut normal = String::with_capacity(path.len() + 8);
    let mut at = 0;
    let mut segment = 0;
    while let Some(&byte) = path.get(at) {
        match CLASSES[usize::from(byte)] {
            Class::Plain | Class::Dot => normal.push(char::from(byte)),
            Class::Slash => {
                close_segment(&mut normal, segment, true)?;
                segment = normal.len();
            }
            Class::Encode => push_escape(&mut normal, byte),
            Class::Percent => {
                let escape = Escape::read(&path[at..])?;
                escape.write(&mut normal);
                at += escape.length();
                continue;
            }
            Class::Refuse(error) => return Err(error),
        }
        at += 1;
    }
    close_segment(&mut normal, segment, false)?;
    Ok(normal)
}

/// Ends the segment that began at `start`: dot segments go (RFC 3986 5.2.4; above the root is the root) and leave the slash
/// of the directory they name; a slash after nothing is a duplicate.
fn close_segment(normal: &mut String, start: usize, slash: bool) -> Result<(), PathError> {
    let segment = &normal[start..];
    match segment {
        // The very first slash also ends an "empty segment": the one before the root.
        "" if slash && start == 0 => normal.push('/'),
        "" => {}
        "." => normal.truncate(start),
        ".." => {
            let parent = normal[..start - 1].rfind('/').map_or(1, |at| at + 1);
            normal.truncate(parent);
        }
        _ if is_dots_with_parameters(segment) => return Err(PathError::DotParameter),
        _ if slash => normal.push('/'),
        _ => {}
    }
    Ok(())
}

/// `..;x` is an ordinary segment by RFC 3986, but servlet containers cut the parameters first and then climb, so
/// `/public/..;/login` would meet the limits of `/public/*` and reach `/login`. No honest client sends one.
/// The encoded semicolon is refused alike, because a second proxy may decode it on the way.
fn is_dots_with_parameters(segment: &str) -> bool {
    let rest = segment.strip_prefix("..").or_else(|| segment.strip_prefix('.'));
    rest.is_some_and(|rest| rest.starts_with(';') || rest.starts_with("%3B"))
}

/// One escape, or the escapes of one UTF-8 character. Decoded once: `%25` stays, and what follows it is text.
#[derive(Clone, Copy)]
enum Escape {
    /// An unreserved character: it means itself (RFC 3986 6.2.2.2).
    Decode(u8),
    /// Any other ASCII character: it stays escaped, in upper case.
    Keep(u8),
    /// One character beyond ASCII, 2 ..= 4 bytes.
    Wide([u8; 4], usize),
}

impl Escape {
    /// Reads at a percent sign. Control characters are refused as a whole, not only NUL: none is part of an honest path, and
    /// CR, LF, TAB and NUL are each cut, trimmed or split at by some upstream.
    fn read(bytes: &[u8]) -> Result<Self, PathError> {
        match octet(bytes)? {
            b'/' | b'\\' => Err(PathError::EncodedSeparator),
            0x00..=0x1f | 0x7f => Err(PathError::EncodedControl),
            byte if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => Ok(Self::Decode(byte)),
            byte if byte.is_ascii() => Ok(Self::Keep(byte)),
            first => Self::read_wide(bytes, first),
        }
    }

    /// Only well-formed UTF-8 passes. Lenient decoders take the overlong `%C0%AF` for a slash and leave out or replace stray
    /// bytes (`/log%FFin`), so either would be a second spelling of a path that has a limit.
    fn read_wide(bytes: &[u8], first: u8) -> Result<Self, PathError> {
        let length = match first {
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            _ => return Err(PathError::EncodedUtf8),
        };
        let mut wide = [first, 0, 0, 0];
        for (index, slot) in wide.iter_mut().enumerate().take(length).skip(1) {
            let rest = bytes.get(index * 3..).unwrap_or_default();
            *slot = if rest.first() == Some(&b'%') { octet(rest)? } else { return Err(PathError::EncodedUtf8) };
        }
        std::str::from_utf8(&wide[..length]).map_err(|_| PathError::EncodedUtf8)?;
        Ok(Self::Wide(wide, length))
    }

    /// How many bytes of the target it takes.
    fn length(self) -> usize {
        match self {
            Self::Decode(_) | Self::Keep(_) => 3,
            Self::Wide(_, length) => 3 * length,
        }
    }

    fn keeps_spelling(self, bytes: &[u8]) -> bool {
        !matches!(self, Self::Decode(_)) && !bytes[..self.length()].iter().any(u8::is_ascii_lowercase)
    }

    fn write(self, normal: &mut String) {
        match self {
            Self::Decode(byte) => normal.push(char::from(byte)),
            Self::Keep(byte) => push_escape(normal, byte),
            Self::Wide(wide, length) => wide[..length].iter().for_each(|&byte| push_escape(normal, byte)),
        }
    }
}

/// The byte that `%XY` at the start of `bytes` stands for.
fn octet(bytes: &[u8]) -> Result<u8, PathError> {
    let digit = |at: usize| bytes.get(at).and_then(|&byte| char::from(byte).to_digit(16));
    let (Some(high), Some(low)) = (digit(1), digit(2)) else { return Err(PathError::Escape) };
    u8::try_from(high * 16 + low).map_err(|_| PathError::Escape)
}

pub(super) fn push_escape(text: &mut String, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    text.push('%');
    text.push(char::from(DIGITS[usize::from(byte >> 4)]));
    text.push(char::from(DIGITS[usize::from(byte & 15)]));
}

#[cfg(test)]
mod tests;
