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

impl Place {
    /// The place of a byte of `text`; one past the end is allowed.
    #[must_use]
    pub fn of(text: &str, byte: usize) -> Self {
        let before = text.get(..byte).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = 1 + before.bytes().filter(|byte| *byte == b'\n').count();
        // A byte order mark is no column of the first line.
        let shown = before[line_start..].trim_start_matches('\u{feff}');
        Self { line, column: 1 + shown.chars().count() }
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

/// The name that was probably meant: at most a third of its letters differ.
#[must_use]
pub fn nearest<'a>(written: &str, names: &[&'a str]) -> Option<&'a str> {
    let lower = written.to_lowercase();
    let distance = |name: &str| strsim::damerau_levenshtein(&lower, &name.to_lowercase());
    let (best, steps) = names.iter().map(|name| (*name, distance(name))).min_by_key(|(_, steps)| *steps)?;
    (steps <= (best.chars().count() / 3).max(1)).then_some(best)
}

fn alternatives(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}
