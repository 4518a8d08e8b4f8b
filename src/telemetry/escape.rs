//! Text from outside, made safe for a log line: no character ends the line, moves a terminal's cursor, or reorders what is
//! read. The same escapes serve the text and the JSON form (`\n`, `\u001b`, …), and a value is bounded in length.

/// A longer value is cut, and ends with `…`.
const LENGTH_MAX: usize = 2048;

/// Appends a value in double quotes; valid JSON.
pub fn quoted(out: &mut Vec<u8>, value: &str) {
    out.push(b'"');
    let shown = &value[..value.floor_char_boundary(LENGTH_MAX)];
    let mut plain_from = 0;
    for (at, character) in shown.char_indices() {
        if is_plain(character) {
            continue;
        }
        out.extend_from_slice(&shown.as_bytes()[plain_from..at]);
        plain_from = at + character.len_utf8();
        escape(out, character);
    }
    out.extend_from_slice(&shown.as_bytes()[plain_from..]);
    if shown.len() < value.len() {
        out.extend_from_slice("…".as_bytes());
    }
    out.push(b'"');
}

/// Appends a value bare where nobody could misread it, else in double quotes.
pub fn bare_or_quoted(out: &mut Vec<u8>, value: &str) {
    let bare = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b'=');
    if !value.is_empty() && value.len() <= LENGTH_MAX && value.bytes().all(bare) {
        out.extend_from_slice(value.as_bytes());
    } else {
        quoted(out, value);
    }
}

/// A line made by others (it ends with its newline), with what could break it escaped; quotes stay as they are.
#[must_use]
pub fn line(line: &str) -> String {
    let (text, end) = line.strip_suffix('\n').map_or((line, ""), |text| (text, "\n"));
    let mut out = Vec::with_capacity(line.len() + 16);
    for character in text.chars() {
        if is_plain(character) || matches!(character, '"' | '\\') {
            out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        } else {
            escape(&mut out, character);
        }
    }
    out.extend_from_slice(end.as_bytes());
    String::from_utf8(out).unwrap_or_default()
}

/// Whether a line made by others can stay as it is.
#[must_use]
pub fn is_clean(line: &str) -> bool {
    line.strip_suffix('\n')
        .unwrap_or(line)
        .chars()
        .all(|character| is_plain(character) || matches!(character, '"' | '\\'))
}

/// Not a quote, a control character (C0, DEL, C1), a line separator, nor one that changes the direction of text.
fn is_plain(character: char) -> bool {
    !(matches!(character, '"' | '\\' | '\u{2028}'..='\u{202f}' | '\u{200b}'..='\u{200f}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
        || character.is_control())
}

/// All that is escaped lies in the Basic Multilingual Plane, so one `\u` does.
fn escape(out: &mut Vec<u8>, character: char) {
    match character {
        '"' => out.extend_from_slice(b"\\\""),
        '\\' => out.extend_from_slice(b"\\\\"),
        '\n' => out.extend_from_slice(b"\\n"),
        '\r' => out.extend_from_slice(b"\\r"),
        '\t' => out.extend_from_slice(b"\\t"),
        other => out.extend_from_slice(format!("\\u{:04x}", u32::from(other)).as_bytes()),
    }
}
