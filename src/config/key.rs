//! `key = …` of a limit: one key source or a list of them. What a source is called is `identify`'s to say.

use super::reader::Value;
use super::text::Text;
use crate::identify::{KeyError, KeySource, KeySpec};

/// What cannot be read is reported, and `None`.
pub fn read(value: &Value<'_>) -> Option<KeySpec> {
    if value.is_string() {
        return Some(KeySpec { sources: vec![source(&value.text()?)?] });
    }
    if !value.raw.get_ref().is_array() {
        value.expected("a key source such as `client_ip`, or an array of them");
        return None;
    }
    let items = value.array("key sources")?;
    if items.is_empty() {
        value.problem(&KeyError::Empty.to_string());
        return None;
    }
    // All are looked at before the first bad one decides.
    let sources: Vec<Option<KeySource>> = items.iter().map(|item| source(&item.text()?)).collect();
    let sources: Vec<KeySource> = sources.into_iter().collect::<Option<_>>()?;
    for (index, item) in items.iter().enumerate() {
        if sources[..index].contains(&sources[index]) {
            item.problem("this key source is in the list twice; leave one out");
            return None;
        }
    }
    Some(KeySpec { sources })
}

fn source(text: &Text<'_>) -> Option<KeySource> {
    text.read(KeySource::from_text)
}
