//! Listening sockets: bound for each core, alone or beside those of another process, or inherited from who started this one;
//! and given up without losing a connection that was on its way.

use listenfd::ListenFd;
use socket2::{Domain, Protocol, SockFilter, SockRef, Socket, TcpKeepalive, Type};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

const BACKLOG: i32 = 4096;
/// A client that vanished without a word is found out even where nothing is due from it: a tunnel, a stream of events.
const PROBE_AFTER: Duration = Duration::from_secs(60);
const PROBE_EVERY: Duration = Duration::from_secs(15);

/// What another process that listens on the same address means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// A mistake.
    Refused,
    /// It is about to be replaced by this one.
    Wanted,
}

/// One core's listening socket.
#[derive(Debug)]
pub struct Listening {
    pub socket: TcpListener,
    /// Others hold it too, and go on listening when this process does not.
    pub inherited: bool,
}

/// Binds an address once for each core (`SO_REUSEPORT`: the kernel deals connections out).
///
/// `SO_REUSEPORT` would let a second process share the address in silence; a first binding without it finds that out.
pub fn bind(address: SocketAddr, cores: usize, sharing: Sharing) -> io::Result<Vec<Listening>> {
    if sharing == Sharing::Refused {
        drop(open(address, false)?);
    }
    (0..cores)
        .map(|_| {
            let socket = open(address, true)?;
            socket.listen(BACKLOG)?;
            Ok(Listening { socket: socket.into(), inherited: false })
        })
        .collect()
}

fn open(address: SocketAddr, shared: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    prepare(&SockRef::from(&socket))?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Accepted sockets inherit the probes, so they cost no call of their own.
fn prepare(socket: &Socket) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_EVERY))
}

/// Listening sockets that this process was started with (systemd's `LISTEN_FDS`), by their address.
#[derive(Debug, Default)]
pub struct Inherited(Vec<(SocketAddr, TcpListener)>);

impl Inherited {
    /// Takes them from the environment; call it once, before there are other threads.
    pub fn take() -> io::Result<Self> {
        let mut passed = ListenFd::from_env();
        let mut sockets = Vec::new();
        for index in 0..passed.len() {
            if let Some(socket) = passed.take_tcp_listener(index)? {
                prepare(&SockRef::from(&socket))?;
                sockets.push((socket.local_addr()?, socket));
            }
        }
        Ok(Self(sockets))
    }

    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.0.iter().map(|(address, _)| *address)
    }

    /// The sockets of an address, dealt out to the cores; all cores listen on one where there are fewer. `None`: there is none.
    /// What was inherited is kept, for a later configuration that asks for the address again.
    #[must_use]
    pub fn listen(&self, address: SocketAddr, cores: usize) -> Option<io::Result<Vec<Listening>>> {
        let sockets: Vec<_> = self.0.iter().filter(|(bound, _)| *bound == address).map(|(_, socket)| socket).collect();
        let clones = sockets.iter().cycle().take(cores.max(sockets.len()) * usize::from(!sockets.is_empty()));
        let listening = |socket: &&TcpListener| Ok(Listening { socket: socket.try_clone()?, inherited: true });
        (!sockets.is_empty()).then(|| clones.map(listening).collect())
    }
}

/// Turns new connections away from a socket that is about to be closed, and lets those complete that have begun: what is in
/// its queue when it closes is reset, though the client was told that it is connected. A first segment that is dropped is
/// sent again a second later, and then finds who else listens on the address, or nobody.
pub fn turn_away(socket: &impl std::os::fd::AsFd) -> io::Result<()> {
    /// Of a TCP header, at which a filter of a TCP socket begins.
    const FLAGS: u32 = 13;
    const SYN: u32 = 0x02;
    // Classic BPF: load the octet; where SYN is set go on to the next, else skip it; keep nothing; keep all.
    let (load, test, end) = (0x30, 0x45, 0x06);
    SockRef::from(socket).attach_filter(&[
        SockFilter::new(load, 0, 0, FLAGS),
        SockFilter::new(test, 0, 1, SYN),
        SockFilter::new(end, 0, 0, 0),
        SockFilter::new(end, 0, 0, u32::MAX),
    ])
}
