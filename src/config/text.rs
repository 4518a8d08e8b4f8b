//! Texts of the file: `${NAME}` replaced from the environment, and what of them may be shown.
//! `$${` stands for a literal `${`. What the environment holds is used, and never shown: errors quote the file.

use super::problem::suggestion;
use super::reader::Value;
use crate::units::Wrong;

/// Longer quotes are cut: an error stays one line that people read.
const SHOWN_CHARACTERS_MAX: usize = 80;

/// A string of the document.
pub struct Text<'a> {
    /// With its variables replaced.
    pub expanded: String,
    /// As written in the file, passwords masked.
    pub shown: String,
    pub value: Value<'a>,
    /// Nothing of it comes from the environment.
    pub is_verbatim: bool,
}

impl Text<'_> {
    /// Says what is wrong with the text: the rest of a sentence that starts with it.
    pub fn problem(&self, predicate: &str) {
        self.value.problem(&format!("`{}` {predicate}", self.shown));
    }

    pub fn unknown(&self, what: &str, names: &[&str]) {
        self.value.problem(&format!("unknown {what} `{}`{}", self.shown, suggestion(&self.expanded, names)));
    }

    pub fn not_supported(&self) {
        self.problem("is not supported yet; leave it out");
    }

    /// For readers whose errors are whole sentences, and quote what they read.
    pub fn read<T, E: std::fmt::Display>(&self, read: impl Fn(&str) -> Result<T, E>) -> Option<T> {
        match read(&self.expanded) {
            Ok(value) => return Some(value),
            Err(error) if self.is_verbatim => self.value.problem(&error.to_string()),
            Err(_) => self.problem("is not valid here; look at what its variables hold"),
        }
        None
    }

    pub fn parsed<T>(&self, parse: impl Fn(&str) -> Result<T, Wrong>) -> Option<T> {
        match parse(&self.expanded) {
            Ok(value) => Some(value),
            Err(wrong) => {
                self.problem(&wrong);
                None
            }
        }
    }
}

/// Replaces every `${NAME}`; says what is wrong with the first that cannot be.
pub fn expand(written: &str, environment: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut text = String::with_capacity(written.len());
    let mut rest = written;
    while let Some(dollar) = rest.find("${") {
        let (before, variable) = rest.split_at(dollar);
        if let Some(literal) = before.strip_suffix('$') {
            text.push_str(literal);
            text.push_str("${");
            rest = &variable[2..];
            continue;
        }
        text.push_str(before);
        let (name, after) = variable[2..].split_once('}').unwrap_or(("", ""));
        if !is_variable(name) {
            return Err(
                "`${` starts no variable; write `${NAME}` with letters, digits and `_`, or `$${` for the two signs"
                    .into(),
            );
        }
        let value = environment(name);
        text.push_str(
            &value.ok_or_else(|| {
                format!("the environment variable `{name}` is not set; set it, or write the value here")
            })?,
        );
        rest = after;
    }
    text.push_str(rest);
    Ok(text)
}

fn is_variable(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// What may be shown of a text: nothing of what stands before an `@` where URLs, also misspelled ones, hold their passwords.
pub fn masked(written: &str) -> String {
    let Some(at) = written.rfind('@').filter(|at| written[..*at].contains(':')) else { return escaped(written) };
    let start = written[..at].find("//").map_or(0, |slashes| slashes + 2);
    escaped(&format!("{}***{}", &written[..start], &written[at..]))
}

/// With control characters spelled out.
pub fn one_line(text: &str) -> String {
    let spell = |character: char| {
        if character.is_control() { character.escape_debug().to_string() } else { character.to_string() }
    };
    text.chars().map(spell).collect()
}

/// On one line, and not too long.
pub fn escaped(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN_CHARACTERS_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN_CHARACTERS_MAX).is_some() {
        shown.push('…');
    }
    shown
}
