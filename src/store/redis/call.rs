//! One call to a node: jobs into the script's arguments, `NOSCRIPT` met with the whole script, rows back into replies.

use super::batch::Job;
use super::fault::{Fault, is_no_script};
use super::script::{self, Call, Told};
use crate::store::ErrorKind;
use redis::aio::MultiplexedConnection;
use redis::{Arg, Cmd, RedisResult, Value};

pub(super) fn encode<'a, 'j>(prefix: &'a str, jobs: impl Iterator<Item = &'j Job>) -> Call<'a> {
    let mut call = Call::new(prefix);
    for job in jobs {
        match job {
            Job::Decide(asks) => call.ask(asks),
            Job::GiveBack { check, charged_at } => call.give_back(check, *charged_at),
            Job::ChargeUpTo(check) => call.charge_up_to(check),
            Job::Inspect(check) => call.inspect(check),
        }
    }
    call
}

/// One row per check, in the order of the jobs.
pub(super) async fn run(mut connection: MultiplexedConnection, call: &Call<'_>) -> Result<Vec<Told>, Fault> {
    let command = call.command();
    let mut reply = send(&mut connection, &command).await;
    if reply.as_ref().is_err_and(is_no_script) {
        // It was not run, so it may be repeated; with the whole script, for another flush may come between loading and using.
        reply = send(&mut connection, &with_source(&command)).await;
    }
    let reply = reply.map_err(|error| Fault::calling(&error))?;
    call.read(&reply).map_err(|error| Fault {
        kind: ErrorKind::Script,
        text: error.to_string().into(),
        maybe_applied: true,
    })
}

async fn send(connection: &mut MultiplexedConnection, command: &Cmd) -> RedisResult<Value> {
    connection.send_packed_command(command).await?.extract_error()
}

/// The same call as `EVAL`, which also loads the script for the calls after it.
fn with_source(command: &Cmd) -> Cmd {
    let mut whole = redis::cmd("EVAL");
    whole.arg(script::source());
    for argument in command.args_iter().skip(2) {
        if let Arg::Simple(bytes) = argument {
            whole.arg(bytes);
        }
    }
    whole
}
