//! Texts at random: whatever an operator's file holds, the loader answers in words, with a place, and without a secret.

use proptest::prelude::*;
use staunch::config::load::parse;

fn environment(name: &str) -> Option<String> {
    let value = match name {
        "TOKEN" => "tok-9c2f",
        "PASSWORD" => "pw-1d7a",
        "STAUNCH_ADMIN_TOKEN" => "a-token",
        _ => return None,
    };
    Some(value.to_owned())
}

#[test]
fn deep_nesting_and_many_problems_end_with_words() {
    for text in ["a=".to_owned() + &"[".repeat(100_000), "a.".repeat(100_000) + "b = 1", "[[a]]\n".repeat(50_000)] {
        assert!(parse("f", &text, &environment).is_err());
    }
    let many: Vec<String> = (0..20_000).map(|number| format!("key{number} = 1\n")).collect();
    assert_eq!(parse("f", &many.concat(), &environment).unwrap_err().list.len(), 20_003);
}

/// Pieces that a file is made of, and some that it is not.
const PIECES: [&str; 24] = [
    "[",
    "]",
    "{",
    "}",
    "=",
    "\"",
    "'",
    "\n",
    ",",
    ".",
    "#",
    "0",
    "-1",
    "9007199254740993",
    "1979-05-27",
    "true",
    "[[routes]]\n",
    "[store.redis]\n",
    "${TOKEN}",
    "${",
    "/*",
    "\u{feff}",
    "é",
    "\\u0000",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn no_text_can_panic_the_loader(text in "\\PC{0,200}") {
        let _ = parse("f", &text, &environment);
    }

    /// A good file with a cut and a piece put in: the loader answers, inside the file, and without a secret.
    #[test]
    fn no_spoiled_file_can_panic_the_loader(cuts in prop::collection::vec((any::<prop::sample::Index>(), 0usize..12, 0usize..PIECES.len()), 1..4)) {
        let mut text: Vec<char> = format!("{}{}", include_str!("../config/staunch.toml").replace("127.0.0.1:7001", "u:${PASSWORD}@a"), "# end\n").chars().collect();
        for (at, length, piece) in cuts {
            let start = at.index(text.len());
            let end = (start + length).min(text.len());
            text.splice(start..end, PIECES[piece].chars());
        }
        let text: String = text.into_iter().collect();
        if let Err(problems) = parse("f", &text, &environment) {
            let said = problems.to_string();
            prop_assert!(!said.contains("tok-9c2f") && !said.contains("pw-1d7a") && !said.contains("a-token"), "{said}");
            prop_assert_eq!(said.lines().count(), problems.list.len());
            let lines: Vec<&str> = text.split('\n').collect();
            for problem in &problems.list {
                let place = problem.place.unwrap();
                let line = lines.get(place.line - 1);
                prop_assert!(line.is_some_and(|line| place.column <= line.chars().count() + 1), "{said}");
            }
        }
    }

    /// Any value for any key: an answer, never a panic.
    #[test]
    fn no_value_can_panic_the_loader(key in 0usize..200, value in "\\PC{0,20}") {
        let text = include_str!("../config/staunch.toml");
        let quoted = format!("{value:?}");
        let mut seen = 0;
        let lines: Vec<String> = text.lines().map(|line| match line.split_once(" = ") {
            Some((name, _)) if !line.starts_with('#') => {
                seen += 1;
                if seen == key % 50 { format!("{name} = {quoted}") } else { line.to_owned() }
            }
            _ => line.to_owned(),
        }).collect();
        let _ = parse("f", &lines.join("\n"), &environment);
    }
}
