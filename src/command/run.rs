//! `staunch run`: serves until told to end.

use super::{BAD_CONFIGURATION, Options, RUN_FAILED};
use crate::app::{App, Overrides, Source, StartError};
use crate::config::watch::watch;
use crate::listener::socket::{Inherited, Sharing};
use crate::telemetry::log::{self, Format, Settings};
use sd_notify::NotifyState;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;
use tokio::runtime::{Builder, LocalOptions};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::level_filters::LevelFilter;

#[must_use]
pub fn run(config: PathBuf, take_over: bool, options: &Options) -> ExitCode {
    let sharing = if take_over { Sharing::Wanted } else { Sharing::Refused };
    serve(Source::File(config), options, sharing, async |_| {})
}

/// Serves what a source says, on a runtime of its own; `started` is called once it does.
pub(super) fn serve<F>(source: Source, options: &Options, sharing: Sharing, started: F) -> ExitCode
where
    F: AsyncFnOnce(&Rc<App>),
{
    // Before there are other threads: the environment is changed by it.
    let inherited = match Inherited::take() {
        Ok(inherited) => inherited,
        Err(error) => return failed(&format!("cannot use the sockets of LISTEN_FDS: {error}")),
    };
    let _flush = log::init(Settings {
        level: options.log_level.unwrap_or(LevelFilter::INFO),
        format: options.overrides().log_format.unwrap_or(Format::Text),
    });
    let overrides = Overrides { sharing, ..options.overrides() };
    let begin = Begin { source, overrides, inherited, drain: options.drain };
    // Sockets are what a proxy is made of; a soft limit of 1024 is a desktop's.
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    match Builder::new_current_thread().enable_all().build_local(LocalOptions::default()) {
        Ok(runtime) => runtime.block_on(until_told(begin, started)),
        Err(error) => failed(&format!("cannot start the control thread: {error}")),
    }
}

/// What the process begins with.
struct Begin {
    source: Source,
    overrides: Overrides,
    inherited: Inherited,
    drain: Duration,
}

async fn until_told<F>(begin: Begin, started: F) -> ExitCode
where
    F: AsyncFnOnce(&Rc<App>),
{
    let signals = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()), signal(SignalKind::hangup()));
    let (Ok(mut terminate), Ok(mut interrupt), Ok(mut hangup)) = signals else {
        return failed("cannot listen to signals");
    };
    // Before the file is read: a change after that must not be missed.
    let mut changes = begin.source.path().map(|path| watch(path.to_owned()));
    let app = match App::start(begin.source, begin.overrides, begin.inherited).await {
        Ok(app) => app,
        Err(StartError::Configuration(problems)) => {
            eprintln!("{problems}");
            return ExitCode::from(BAD_CONFIGURATION);
        }
        Err(StartError::Run(why)) => return failed(&why),
    };
    started(&app).await;
    tell_manager(NotifyState::Ready);
    let tending = app.clone();
    tokio::task::spawn_local(async move { tending.tend().await });
    loop {
        tokio::select! {
            () = end(&mut terminate, &mut interrupt) => break,
            _ = hangup.recv() => drop(app.reload().await),
            Some(()) = next(changes.as_mut()) => app.reload_if_changed().await,
        }
    }
    tell_manager(NotifyState::Stopping);
    // A second signal is impatience: what is open then is closed.
    tokio::select! {
        () = app.drain(begin.drain) => {}
        () = end(&mut terminate, &mut interrupt) => tracing::warn!("told twice; closing what is still open"),
    }
    app.stop().await;
    ExitCode::SUCCESS
}

/// Tells systemd, if that started the process and waits to be told (`Type=notify`).
fn tell_manager(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "could not notify the service manager");
    }
}

async fn end(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// The next notice that the file may have changed; never one where there is no file.
async fn next(changes: Option<&mut tokio::sync::mpsc::Receiver<()>>) -> Option<()> {
    match changes {
        Some(changes) => changes.recv().await,
        None => std::future::pending().await,
    }
}

fn failed(why: &str) -> ExitCode {
    eprintln!("staunch: {why}");
    ExitCode::from(RUN_FAILED)
}
