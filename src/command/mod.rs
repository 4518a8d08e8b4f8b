//! The command line: one file per command, and the exit codes.

pub mod check;
pub mod demo;
pub mod healthcheck;
pub mod run;

use crate::app::Overrides;
use crate::listener::socket::Sharing;
use crate::telemetry::log::Format;
use crate::units::parse_duration;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tracing::level_filters::LevelFilter;

/// A run-time failure: an address that is taken, a thread that cannot be made.
pub const RUN_FAILED: u8 = 1;
/// The configuration is not to be used (`EX_CONFIG` of sysexits.h). Wrong usage is 2, and clap's.
pub const BAD_CONFIGURATION: u8 = 78;

/// A reverse proxy that limits rates: exact, cheap, honest in every header, calm when its store is gone.
#[derive(Debug, Parser)]
#[command(name = "staunch", version = concat!(env!("CARGO_PKG_VERSION"), " (", env!("STAUNCH_COMMIT"), ")"))]
#[command(arg_required_else_help = true)]
pub struct CommandLine {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve. SIGHUP reloads the file, SIGTERM and SIGINT drain.
    Run {
        /// The configuration file; see config/staunch.toml for every option.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Listen beside the process that has the addresses now, which is to be ended once this one is ready.
        #[arg(long)]
        take_over: bool,
        #[command(flatten)]
        options: Options,
    },
    /// Start a small echo upstream and the gateway in front of it, in memory; needs no file.
    Demo {
        #[command(flatten)]
        options: Options,
    },
    /// Say what is wrong with a configuration file, or how much it holds.
    Check {
        /// The configuration file; nothing is started or connected to.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Exit with 0 if the gateway behind this admin address is ready: for images without curl.
    Healthcheck {
        /// The `address` of the `[admin]` table.
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9090")]
        admin: SocketAddr,
    },
}

#[derive(Args, Clone, Copy, Debug)]
pub struct Options {
    /// Cores to serve on [default: as many as the process may use]
    #[arg(long, value_name = "N", value_parser = workers)]
    pub workers: Option<usize>,
    /// How long requests in flight may take to finish at the end
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub drain: Duration,
    /// off, error, warn, info, debug or trace; wins over the file
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<LevelFilter>,
    /// Wins over the file
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

impl Options {
    #[must_use]
    pub fn overrides(&self) -> Overrides {
        let log_format = self.log_format.map(|format| match format {
            LogFormat::Text => Format::Text,
            LogFormat::Json => Format::Json,
        });
        Overrides { log_level: self.log_level, log_format, workers: self.workers, sharing: Sharing::Refused }
    }
}

/// Runs a command to its end.
#[must_use]
pub fn run(command: Command) -> ExitCode {
    match command {
        Command::Run { config, take_over, options } => run::run(config, take_over, &options),
        Command::Demo { options } => demo::run(&options),
        Command::Check { file } => check::run(&file),
        Command::Healthcheck { admin } => healthcheck::run(admin),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|wrong| wrong.to_string())
}

fn workers(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=1024) => Ok(count),
        _ => Err("a number from 1 to 1024".to_owned()),
    }
}
