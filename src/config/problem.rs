//! What is wrong with a file, and where. Problems are collected, never thrown at the first: an operator mends them all in one go.
//! Lines and columns count from 1; columns count characters, as editors do.

use std::fmt;

/// All that is wrong with one file; its `Display` is one line for each problem, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    /// The file, as it was named by whoever asked.
    pub file: String,
    /// Sorted by place; never empty.
    pub list: Vec<Problem>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// `None`: the file as a whole, such as one that cannot be read.
    pub place: Option<Place>,
    /// `policies.public.limits[0].quota`; empty where the text is no TOML.
    pub path: String,
    /// What is wrong; what would be right.
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub line: usize,
    pub column: usize,
}

/// Walks through a text once, telling the places of bytes in rising order.
pub struct Cursor<'a> {
    rest: &'a str,
    byte: usize,
    place: Place,
}

impl<'a> Cursor<'a> {
    #[must_use]
    pub fn new(text: &'a str) -> Self {
        // A byte order mark is no column of the first line.
        let rest = text.strip_prefix('\u{feff}').unwrap_or(text);
        Self { rest, byte: text.len() - rest.len(), place: Place { line: 1, column: 1 } }
    }

    /// The place of the byte; past the end it is the end's.
    pub fn advance(&mut self, byte: usize) -> Place {
        let passed = self.rest.char_indices().take_while(|(index, _)| self.byte + index < byte);
        let mut length = 0;
        for (index, character) in passed {
            length = index + character.len_utf8();
            self.place = match character {
                '\n' => Place { line: self.place.line + 1, column: 1 },
                _ => Place { column: self.place.column + 1, ..self.place },
            };
        }
        self.rest = &self.rest[length..];
        self.byte += length;
        self.place
    }
}

impl Place {
    /// The place of one byte.
    #[must_use]
    pub fn of(text: &str, byte: usize) -> Self {
        Cursor::new(text).advance(byte)
    }
}

impl Problems {
    #[must_use]
    pub fn new(file: &str, mut list: Vec<Problem>) -> Self {
        list.sort();
        list.dedup();
        Self { file: file.to_owned(), list }
    }

    /// The file as a whole is at fault.
    #[must_use]
    pub fn whole(file: &str, message: String) -> Self {
        Self::new(file, vec![Problem { place: None, path: String::new(), message }])
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.list.iter().enumerate() {
            if index > 0 {
                formatter.write_str("\n")?;
            }
            write!(formatter, "{}:", self.file)?;
            if let Some(Place { line, column }) = problem.place {
                write!(formatter, "{line}:{column}:")?;
            }
            if !problem.path.is_empty() {
                write!(formatter, " {}:", problem.path)?;
            }
            write!(formatter, " {}", problem.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// `; did you mean …?` where one of the names is near, else `; expected …` with all of them.
#[must_use]
pub fn suggestion(written: &str, names: &[&str]) -> String {
    match nearest(written, names) {
        Some(name) => format!("; did you mean `{name}`?"),
        None if names.is_empty() => String::new(),
        None => format!("; expected {}", alternatives(names)),
    }
}

/// The name that was probably meant: at most a third of its letters differ, or it has what was written as a word (`ip`).
#[must_use]
pub fn nearest<'a>(written: &str, names: &[&'a str]) -> Option<&'a str> {
    let lower = written.to_lowercase();
    let distance = |name: &str| strsim::damerau_levenshtein(&lower, &name.to_lowercase());
    let (best, steps) = names.iter().map(|name| (*name, distance(name))).min_by_key(|(_, steps)| *steps)?;
    let is_word_of = |name: &&&str| name.split(['_', ':']).any(|word| word == lower);
    if steps <= (best.chars().count() / 3).max(1) { Some(best) } else { names.iter().find(is_word_of).copied() }
}

fn alternatives(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}
