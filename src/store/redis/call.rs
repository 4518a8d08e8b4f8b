//! Calls to a node: jobs into the script's arguments, `NOSCRIPT` met with the whole script, rows back into replies.

use super::batch::Job;
use super::fault::{Fault, is_no_script};
use super::script::{self, Call, Told};
use crate::store::ErrorKind;
use redis::aio::MultiplexedConnection;
use redis::{Arg, Cmd, Pipeline, RedisResult, Value};
use smallvec::{SmallVec, smallvec};

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

/// A script call, and whether its node is asked for a slot that it is only just taking over.
pub(super) struct Order<'a> {
    pub call: Call<'a>,
    pub asking: bool,
}

/// What came of each call: one row per check, in the order of its jobs.
pub(super) type Results = SmallVec<[Result<Vec<Told>, Fault>; 1]>;

/// Sends all calls in one write.
pub(super) async fn run(mut connection: MultiplexedConnection, orders: &[Order<'_>]) -> Results {
    let commands: SmallVec<[Cmd; 1]> = orders.iter().map(|order| order.call.command()).collect();
    let asking = |at: usize| orders[at].asking;
    let mut replies = send(&mut connection, &commands, asking).await;
    let unknown: SmallVec<[usize; 1]> =
        (0..replies.len()).filter(|at| replies[*at].as_ref().is_err_and(is_no_script)).collect();
    if !unknown.is_empty() {
        // They were not run, so they may be repeated; with the whole script, for another flush may come between loading and using.
        let whole: SmallVec<[Cmd; 1]> = unknown.iter().map(|at| with_source(&commands[*at])).collect();
        let again = send(&mut connection, &whole, |at| asking(unknown[at])).await;
        unknown.iter().zip(again).for_each(|(at, reply)| replies[*at] = reply);
    }
    orders.iter().zip(replies).map(|(order, reply)| read(&order.call, reply)).collect()
}

fn read(call: &Call<'_>, reply: RedisResult<Value>) -> Result<Vec<Told>, Fault> {
    let reply = reply.map_err(|error| Fault::calling(&error))?;
    let malformed =
        |error: script::Malformed| Fault { maybe_applied: true, ..Fault::before(ErrorKind::Script, error.to_string()) };
    call.read(&reply).map_err(malformed)
}

type Replies = SmallVec<[RedisResult<Value>; 1]>;

async fn send(connection: &mut MultiplexedConnection, commands: &[Cmd], asking: impl Fn(usize) -> bool) -> Replies {
    if let [command] = commands
        && !asking(0)
    {
        let reply = connection.send_packed_command(command).await;
        return smallvec![reply.and_then(Value::extract_error)];
    }
    let mut pipeline = Pipeline::with_capacity(commands.len() + 1);
    let mut places = Vec::with_capacity(commands.len());
    let mut sent = 0;
    for (at, command) in commands.iter().enumerate() {
        if asking(at) {
            pipeline.cmd("ASKING");
            sent += 1;
        }
        pipeline.add_command(command.clone());
        places.push(sent);
        sent += 1;
    }
    match connection.send_packed_commands(&pipeline, 0, sent).await {
        Ok(mut replies) => {
            let reply =
                |at: &usize| replies.get_mut(*at).map_or(Value::Nil, |reply| std::mem::replace(reply, Value::Nil));
            places.iter().map(reply).map(Value::extract_error).collect()
        }
        Err(error) => smallvec![Err(error); commands.len()],
    }
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
