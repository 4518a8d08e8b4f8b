//! `staunch check`: what is wrong with a file, or how much it holds.

use super::BAD_CONFIGURATION;
use crate::config::load;
use std::path::Path;
use std::process::ExitCode;

#[must_use]
pub fn run(file: &Path) -> ExitCode {
    match load::load(file) {
        Ok(config) => {
            println!("ok: {}", config.counts());
            ExitCode::SUCCESS
        }
        Err(problems) => {
            eprintln!("{problems}");
            ExitCode::from(BAD_CONFIGURATION)
        }
    }
}
