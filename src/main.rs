//! A checklist: arguments, command, exit code.

use clap::Parser;
use staunch::command::{CommandLine, run};
use std::process::ExitCode;

/// Many small allocations a request, on one core each: where mimalloc is at its best.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    run(CommandLine::parse().command)
}
