//! A file of whatever bytes: a configuration, or problems that each say where they are.
#![no_main]

use libfuzzer_sys::fuzz_target;
use staunch::config::load;

fuzz_target!(|text: &str| {
    let environment = |name: &str| (name == "SET").then(|| "value".to_owned());
    if let Err(problems) = load::parse("f.toml", text, &environment) {
        let told = problems.to_string();
        let problem = |line: &str| {
            line.strip_prefix("f.toml:").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        assert!(told.lines().next().is_some_and(problem), "{told}");
    }
});
