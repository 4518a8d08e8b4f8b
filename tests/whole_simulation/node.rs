//! A node in virtual time: speaks Redis's protocol on a socket in the file system, runs `frame` on its own clock, and fails as
//! it is told to.

use super::frame::{Frame, States, Units};
use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Up,
    /// Closes every connection.
    Down,
    /// Reads nothing until it runs on; then it does what it was asked.
    Stopped,
    /// Does what it is asked, and its replies never arrive.
    Silent,
}

/// Its clock at the beginning, but for its skew: ten minutes past a full hour, so that no window ends in a history.
const EPOCH_US: u64 = 1_796_001_000_000_000;

pub struct Node {
    pub path: PathBuf,
    skew_us: u64,
    begun: Instant,
    delay_max_ms: u64,
    rng: RefCell<fastrand::Rng>,
    mode: Cell<Mode>,
    changed: Notify,
    pub states: RefCell<States>,
    gateways: RefCell<std::collections::BTreeSet<Vec<u8>>>,
    /// Commands; a call that the frame cannot read leaves these apart.
    pub begun_to_run: Cell<u64>,
    pub run_whole: Cell<u64>,
    /// What was asked of it and not answered at once: whoever asked does not know whether it was charged.
    pub doubtful: RefCell<Units>,
}

impl Node {
    pub fn start(path: PathBuf, delay_max_ms: u64, seed: u64) -> Rc<Self> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let node = Rc::new(Self {
            skew_us: rng.u64(0..1_200_000_000),
            begun: Instant::now(),
            delay_max_ms,
            rng: RefCell::new(rng),
            mode: Cell::new(Mode::Up),
            changed: Notify::new(),
            states: RefCell::default(),
            gateways: RefCell::default(),
            begun_to_run: Cell::default(),
            run_whole: Cell::default(),
            doubtful: RefCell::default(),
            path,
        });
        let (listener, accepting) = (UnixListener::bind(&node.path).unwrap(), node.clone());
        spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                if accepting.mode.get() != Mode::Down {
                    spawn_local(accepting.clone().serve(stream));
                }
            }
        });
        node
    }

    pub fn set(&self, mode: Mode) {
        self.mode.set(mode);
        self.changed.notify_waiters();
    }

    /// As a crash and a new start would: it has forgotten everything.
    pub fn restart(&self) {
        self.set(Mode::Down);
        self.states.borrow_mut().counters.clear();
        self.gateways.borrow_mut().clear();
    }

    pub fn now_us(&self) -> u64 {
        EPOCH_US + self.skew_us + u64::try_from(self.begun.elapsed().as_micros()).unwrap()
    }

    async fn serve(self: Rc<Self>, mut stream: UnixStream) {
        let (mut input, mut buffer, mut is_lost) = (Vec::new(), vec![0; 1 << 14], false);
        loop {
            let was_stopped = self.runs_on().await;
            if self.mode.get() == Mode::Down {
                return self.hang_up(stream, input).await;
            }
            // (What came while it stood still is there at once.)
            tokio::select! {
                biased;
                read = stream.read(&mut buffer) => match read {
                    Ok(read @ 1..) => input.extend_from_slice(&buffer[..read]),
                    _ => return,
                },
                () = self.changed.notified() => {}
            }
            let commands = take_commands(&mut input);
            if !commands.is_empty() {
                is_lost = self.answer(&mut stream, &commands, is_lost, was_stopped).await;
            }
        }
    }

    /// Closes its side. What was sent before that is noticed on the other is lost, and nobody there knows how much was done.
    async fn hang_up(&self, mut stream: UnixStream, mut input: Vec<u8>) {
        let mut buffer = vec![0; 1 << 14];
        let _ = stream.shutdown().await;
        while let Ok(read @ 1..) = stream.read(&mut buffer).await {
            input.extend_from_slice(&buffer[..read]);
        }
        take_commands(&mut input).iter().for_each(|command| self.doubt(command));
    }

    /// Waits while it stands still; says whether it did.
    async fn runs_on(&self) -> bool {
        let was_stopped = self.mode.get() == Mode::Stopped;
        while self.mode.get() == Mode::Stopped {
            self.changed.notified().await;
        }
        was_stopped
    }

    /// Does what came together, with delays before and after; says whether replies on this connection are lost from now on.
    async fn answer(
        &self,
        stream: &mut UnixStream,
        commands: &[Vec<Vec<u8>>],
        mut is_lost: bool,
        mut is_late: bool,
    ) -> bool {
        self.delay().await;
        is_late |= self.runs_on().await;
        if self.mode.get() == Mode::Down {
            commands.iter().for_each(|command| self.doubt(command));
            return true;
        }
        let replies: Vec<u8> = commands.iter().flat_map(|command| self.run(command)).collect();
        self.delay().await;
        is_late |= self.runs_on().await;
        is_lost |= self.mode.get() != Mode::Up;
        if is_lost || is_late {
            commands.iter().for_each(|command| self.doubt(command));
        }
        if !is_lost {
            is_lost = stream.write_all(&replies).await.is_err();
        }
        is_lost
    }

    async fn delay(&self) {
        let delay_ms = self.rng.borrow_mut().u64(0..=self.delay_max_ms);
        if delay_ms > 0 {
            sleep(Duration::from_millis(delay_ms)).await;
        }
    }

    fn doubt(&self, command: &[Vec<u8>]) {
        if command[0] == b"EVALSHA" {
            let mut doubtful = self.doubtful.borrow_mut();
            for (key, units) in Frame::read(&command[2..]).charges() {
                *doubtful.entry(key).or_default() += units;
            }
        }
    }

    fn run(&self, command: &[Vec<u8>]) -> Vec<u8> {
        self.begun_to_run.set(self.begun_to_run.get() + 1);
        let now = self.now_us();
        let reply = match command[0].as_slice() {
            b"EVALSHA" => bulk(&Frame::read(&command[2..]).run(&mut self.states.borrow_mut(), now)),
            // The heartbeat: the only script that comes as a text.
            b"EVAL" => {
                let mut gateways = self.gateways.borrow_mut();
                let is_new = gateways.insert(command[4].clone());
                let (seconds, micros) = (now / 1_000_000, now % 1_000_000);
                array(&[gateways.len() as u64, seconds, micros, u64::from(is_new)])
            }
            b"PING" => b"+PONG\r\n".to_vec(),
            b"SCRIPT" => b"+loaded\r\n".to_vec(),
            b"CLIENT" => b"+OK\r\n".to_vec(),
            other => panic!("{}", String::from_utf8_lossy(other)),
        };
        self.run_whole.set(self.run_whole.get() + 1);
        reply
    }
}

fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

fn array(numbers: &[u64]) -> Vec<u8> {
    let mut text = format!("*{}\r\n", numbers.len());
    numbers.iter().for_each(|number| text.push_str(&format!(":{number}\r\n")));
    text.into_bytes()
}

/// Those that are there as a whole.
fn take_commands(input: &mut Vec<u8>) -> Vec<Vec<Vec<u8>>> {
    std::iter::from_fn(|| take_command(input)).collect()
}

fn take_command(input: &mut Vec<u8>) -> Option<Vec<Vec<u8>>> {
    let mut at = 0;
    let count = line(input, &mut at)?;
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let length = line(input, &mut at)?;
        words.push(input.get(at..at + length)?.to_vec());
        at += length + 2;
    }
    (at <= input.len()).then(|| input.drain(..at));
    Some(words)
}

/// The number of a line such as `*3` or `$12`.
fn line(input: &[u8], at: &mut usize) -> Option<usize> {
    let rest = input.get(*at..)?;
    let end = rest.windows(2).position(|end| end == b"\r\n")?;
    *at += end + 2;
    std::str::from_utf8(&rest[1..end]).ok()?.parse().ok()
}
