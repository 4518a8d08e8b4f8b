//! A checklist: arguments, command, exit code.

#![warn(clippy::unwrap_used, clippy::expect_used, reason = "a panic ends what should have gone on")]

use clap::Parser;
use staunch::command::{CommandLine, run};
use std::process::ExitCode;

/// Many small allocations a request, on one core each: where mimalloc is at its best.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    run(CommandLine::parse().command)
}
