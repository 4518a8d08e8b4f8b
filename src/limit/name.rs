//! A limit's name in the spellings that clients read it in, written once when a configuration is loaded.

/// As told to a route's clients: the limit's name, or `policy/limit` where two limits of the route have one name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Name {
    text: Box<str>,
    quoted: Box<str>,
    json: Box<str>,
}

impl Name {
    #[must_use]
    pub fn new(text: &str) -> Self {
        let document = serde_json::Value::from(text).to_string();
        let json = document.get(1..document.len() - 1).unwrap_or_default();
        Self { text: text.into(), quoted: quoted(text).into(), json: json.into() }
    }

    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// A string of RFC 9651 §3.3.3, with its quotes.
    #[must_use]
    pub fn quoted(&self) -> &str {
        &self.quoted
    }

    /// What stands between the quotes of a JSON string.
    #[must_use]
    pub fn json(&self) -> &str {
        &self.json
    }
}

/// A byte that such a string cannot hold becomes `?`: the configuration allows none, and a field that does not parse would
/// cost the client all the others in it.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => quoted.extend(['\\', char::from(byte)]),
            b' '..=b'~' => quoted.push(char::from(byte)),
            _ => quoted.push('?'),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_spelt_for_fields_and_for_documents() {
        let name = Name::new("say \"hi\\\" ü");
        assert_eq!(name.text(), "say \"hi\\\" ü");
        assert_eq!(name.quoted(), r#""say \"hi\\\" ??""#);
        assert_eq!(name.json(), r#"say \"hi\\\" ü"#);
    }
}
