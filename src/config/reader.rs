//! A parsed document that knows where each thing stood: tables that remember which keys were asked for, and values that say what
//! was expected of them. Readers go on after a problem, so that all problems of a file are found at once.
//! What an error shows is the file's own text, never what the environment put in its place.

use super::problem::{Cursor, Place, Problem, Problems, suggestion};
use super::text::{Text, expand, masked, one_line};
use crate::units;
use std::cell::RefCell;
use std::fs::File;
use std::io::Read;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Of a file that the configuration names; certificates of a whole system are some 200 KiB.
const NAMED_FILE_BYTES_MAX: u64 = 16 << 20;

pub const NOT_SUPPORTED: &str = "not supported yet; leave it out";

/// One file while it is read.
pub struct Source<'a> {
    pub text: &'a str,
    pub environment: &'a dyn Fn(&str) -> Option<String>,
    /// The file's own: where relative paths in it start.
    pub folder: &'a Path,
    /// With the byte of each; places are found at the end, in one walk.
    problems: RefCell<Vec<(usize, String, String)>>,
}

impl<'a> Source<'a> {
    pub fn new(text: &'a str, environment: &'a dyn Fn(&str) -> Option<String>, folder: &'a Path) -> Self {
        Self { text, environment, folder, problems: RefCell::default() }
    }

    pub fn problem(&self, byte: usize, path: &str, message: impl Into<String>) {
        // Names and patterns of the file are quoted, and may hold anything: a problem stays one line.
        let message = one_line(&message.into());
        self.problems.borrow_mut().push((byte, path.to_owned(), message));
    }

    pub fn is_sound(&self) -> bool {
        self.problems.borrow().is_empty()
    }

    pub fn into_problems(self, file: &str) -> Problems {
        let mut found = self.problems.into_inner();
        found.sort();
        let mut cursor = Cursor::new(self.text);
        let problem = |(byte, path, message)| Problem { place: Some(cursor.advance(byte)), path, message };
        Problems::new(file, found.into_iter().map(problem).collect())
    }
}

/// A table of the document.
pub struct Table<'a> {
    source: &'a Source<'a>,
    path: String,
    at: usize,
    entries: &'a DeTable<'a>,
    asked: RefCell<Vec<&'static str>>,
}

impl<'a> Table<'a> {
    pub fn root(source: &'a Source<'a>, entries: &'a DeTable<'a>) -> Self {
        Self { source, path: String::new(), at: 0, entries, asked: RefCell::default() }
    }

    pub fn get(&self, key: &'static str) -> Option<Value<'a>> {
        self.asked.borrow_mut().push(key);
        let (name, raw) = self.entries.get_key_value(key)?;
        Some(Value { source: self.source, path: self.child(key), key_at: name.span().start, raw })
    }

    pub fn required(&self, key: &'static str, example: &str) -> Option<Value<'a>> {
        let value = self.get(key);
        if value.is_none() {
            self.source.problem(self.at, &self.child(key), format!("missing; write {example}"));
        }
        value
    }

    /// All entries, in the order of the file: for tables whose keys are names.
    pub fn entries(&self) -> Vec<(String, Value<'a>)> {
        let mut entries: Vec<_> = self.entries.iter().collect();
        entries.sort_by_key(|(name, _)| name.span().start);
        let named = |(name, raw): (&'a Spanned<_>, _)| {
            let name_text: &std::borrow::Cow<'_, str> = name.get_ref();
            let value = Value { source: self.source, path: self.child(name_text), key_at: name.span().start, raw };
            (name_text.to_string(), value)
        };
        entries.into_iter().map(named).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Says which keys nobody asked for.
    pub fn finish(&self) {
        let asked = self.asked.borrow();
        for (name, value) in self.entries() {
            if !asked.contains(&name.as_str()) {
                value.problem_at_key(&format!("unknown key{}", suggestion(&name, &asked)));
            }
        }
    }

    /// Something is wrong with the table as a whole.
    pub fn problem(&self, message: &str) {
        self.source.problem(self.at, &self.path, message);
    }

    fn child(&self, key: &str) -> String {
        let bare = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        let key = if bare { key.to_owned() } else { format!("\"{}\"", super::text::escaped(key)) };
        if self.path.is_empty() { key } else { format!("{}.{key}", self.path) }
    }

    pub fn boolean(&self, key: &'static str, default: bool) -> bool {
        self.get(key).and_then(|value| value.boolean()).unwrap_or(default)
    }

    pub fn integer(&self, key: &'static str, default: u64, range: RangeInclusive<u64>) -> u64 {
        self.get(key).and_then(|value| value.integer(range)).unwrap_or(default)
    }

    pub fn duration(&self, key: &'static str, default: Duration, range: &RangeInclusive<Duration>) -> Duration {
        self.get(key).and_then(|value| value.duration(range)).unwrap_or(default)
    }

    pub fn choice<T: Copy>(&self, key: &'static str, default: T, choices: &[(&str, T)]) -> T {
        self.get(key).and_then(|value| value.choice(choices)).unwrap_or(default)
    }

    /// The table under `key`; where there is none, `None`.
    pub fn table(&self, key: &'static str) -> Option<Table<'a>> {
        self.get(key).and_then(|value| value.table())
    }
}

/// A value of the document.
#[derive(Clone)]
pub struct Value<'a> {
    pub source: &'a Source<'a>,
    pub path: String,
    pub key_at: usize,
    pub raw: &'a Spanned<DeValue<'a>>,
}

impl<'a> Value<'a> {
    pub fn problem(&self, message: &str) {
        self.source.problem(self.raw.span().start, &self.path, message);
    }

    pub fn problem_at_key(&self, message: &str) {
        self.source.problem(self.key_at, &self.path, message);
    }

    /// The same value without its name in the path, for names that are somebody's secret.
    pub fn anonymous(mut self, table: &str) -> Self {
        self.path = format!("{table}.\"***\"");
        self
    }

    pub fn expected(&self, what: &str) {
        self.problem(&format!("expected {what}, found {}", kind(self.raw.get_ref())));
    }

    /// Whether the value's own name, in a table of names, can go where names go: labels of metrics, and fields of answers, whose
    /// strings are printable ASCII.
    pub fn check_name(&self, name: &str) {
        if !is_name(name) {
            self.problem_at_key("this is no name; write 1 to 128 printable ASCII characters");
        }
    }

    pub fn line(&self) -> usize {
        Place::of(self.source.text, self.raw.span().start).line
    }

    pub fn is_string(&self) -> bool {
        self.raw.get_ref().is_str()
    }

    pub fn is_table(&self) -> bool {
        self.raw.get_ref().is_table()
    }

    pub fn table(&self) -> Option<Table<'a>> {
        let Some(entries) = self.raw.get_ref().as_table() else {
            self.expected("a table");
            return None;
        };
        let at = self.raw.span().start;
        Some(Table { source: self.source, path: self.path.clone(), at, entries, asked: RefCell::default() })
    }

    pub fn array(&self, of: &str) -> Option<Vec<Value<'a>>> {
        let Some(items) = self.raw.get_ref().as_array() else {
            self.expected(&format!("an array of {of}"));
            return None;
        };
        let item = |(index, raw): (usize, &'a Spanned<DeValue<'a>>)| Value {
            source: self.source,
            path: format!("{}[{index}]", self.path),
            key_at: raw.span().start,
            raw,
        };
        Some(items.iter().enumerate().map(item).collect())
    }

    pub fn texts(&self) -> Option<Vec<Text<'a>>> {
        Some(self.array("strings")?.iter().filter_map(Value::text).collect())
    }

    /// The text with its variables replaced.
    pub fn text(&self) -> Option<Text<'a>> {
        let Some(written) = self.raw.get_ref().as_str() else {
            self.expected("a string");
            return None;
        };
        match expand(written, self.source.environment) {
            Ok(expanded) => {
                let is_verbatim = expanded == written;
                Some(Text { expanded, shown: masked(written), value: self.clone(), is_verbatim })
            }
            Err(wrong) => {
                self.problem(&wrong);
                None
            }
        }
    }

    /// The content of the file that is named.
    pub fn file(&self) -> Option<Vec<u8>> {
        let text = self.text()?;
        let mut content = Vec::new();
        let opened = File::open(self.source.folder.join(&text.expanded));
        match opened.and_then(|file| file.take(NAMED_FILE_BYTES_MAX).read_to_end(&mut content)) {
            Ok(_) => Some(content),
            Err(error) => {
                text.problem(&format!("cannot be read: {error}; name a file, from this file's folder if not from `/`"));
                None
            }
        }
    }

    pub fn boolean(&self) -> Option<bool> {
        let boolean = self.raw.get_ref().as_bool();
        if boolean.is_none() {
            self.expected("`true` or `false`");
        }
        boolean
    }

    pub fn integer(&self, range: RangeInclusive<u64>) -> Option<u64> {
        let what = format!("a whole number from {} to {}", range.start(), range.end());
        let Some(integer) = self.raw.get_ref().as_integer() else {
            self.expected(&what);
            return None;
        };
        let number =
            i128::from_str_radix(integer.as_str(), integer.radix()).ok().and_then(|wide| u64::try_from(wide).ok());
        let number = number.filter(|number| range.contains(number));
        if number.is_none() {
            self.problem(&format!("expected {what}, found {integer}"));
        }
        number
    }

    pub fn duration(&self, range: &RangeInclusive<Duration>) -> Option<Duration> {
        let text = self.text()?;
        let length = text.parsed(units::parse_duration)?;
        if range.contains(&length) {
            return Some(length);
        }
        let (shortest, longest) = (range.start(), range.end());
        let (shortest, longest) = (units::duration_text(*shortest), units::duration_text(*longest));
        text.problem(&format!("is out of bounds; write a duration from {shortest} to {longest}"));
        None
    }

    /// Bytes, from a text such as `64KiB`.
    pub fn size(&self, range: RangeInclusive<u64>) -> Option<u64> {
        let text = self.text()?;
        let bytes = text.parsed(units::parse_size)?;
        if range.contains(&bytes) {
            return Some(bytes);
        }
        let (smallest, largest) = (units::size_text(*range.start()), units::size_text(*range.end()));
        text.problem(&format!("is out of bounds; write a size from {smallest} to {largest}"));
        None
    }

    pub fn choice<T: Copy>(&self, choices: &[(&str, T)]) -> Option<T> {
        let text = self.text()?;
        let found = choices.iter().find(|(name, _)| *name == text.expanded);
        if found.is_none() {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            text.unknown("value", &names);
        }
        found.map(|(_, choice)| *choice)
    }
}

pub fn is_name(name: &str) -> bool {
    (1..=128).contains(&name.len()) && name.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}
