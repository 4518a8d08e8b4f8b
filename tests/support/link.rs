//! A TCP link to a node that can be broken: what goes over it can be lost in one direction or both, as if a cable had been
//! cut without a word; it can be late; and every connection can be closed as soon as it is there.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{Notify, oneshot};

pub const PASS: u8 = 0;
/// Nothing arrives in either direction, nothing is closed.
pub const BLACK_HOLE: u8 = 1;
/// The node hears everything, and its replies are lost.
pub const DROP_REPLIES: u8 = 2;
/// Connections that are open are closed, and new ones as soon as they are made.
pub const CUT: u8 = 3;

#[derive(Clone, Debug)]
pub struct Link {
    port: u16,
    mode: Arc<AtomicU8>,
    /// How late everything is, in each direction.
    delay_ms: Arc<AtomicU64>,
    connections: Arc<AtomicU64>,
    changed: Arc<Notify>,
}

/// A thread that carries the links of a test that has no runtime; they end when it is dropped.
#[derive(Debug)]
pub struct Network {
    handle: Handle,
    end: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Network {
    pub fn start() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (handle, (end, ended)) = (runtime.handle().clone(), oneshot::channel::<()>());
        let thread = std::thread::spawn(move || drop(runtime.block_on(ended)));
        Self { handle, end: Some(end), thread: Some(thread) }
    }

    pub fn link(&self, target: SocketAddr) -> Link {
        self.handle.block_on(Link::to(target))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        drop(self.end.take());
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

impl Link {
    /// Call it inside a runtime; the link lives as long as the runtime.
    pub async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let port = listener.local_addr().expect("a bound address").port();
        let link = Self {
            port,
            mode: Arc::default(),
            delay_ms: Arc::default(),
            connections: Arc::default(),
            changed: Arc::default(),
        };
        let accepting = link.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                accepting.connections.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(accepting.clone().carry(near, target));
            }
        });
        link
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn set(&self, mode: u8) {
        self.mode.store(mode, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    pub fn delay_ms(&self, delay_ms: u64) {
        self.delay_ms.store(delay_ms, Ordering::SeqCst);
    }

    /// How many connections were made so far.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    async fn carry(self, near: TcpStream, target: SocketAddr) {
        let cut = self.clone().cut();
        let Ok(far) = TcpStream::connect(target).await else { return };
        let (near_read, near_write) = near.into_split();
        let (far_read, far_write) = far.into_split();
        let there = self.clone().pump(near_read, far_write, &[BLACK_HOLE]);
        let back = self.pump(far_read, near_write, &[BLACK_HOLE, DROP_REPLIES]);
        // Either end's closing closes both.
        tokio::select! { () = there => {}, () = back => {}, () = cut => {} }
    }

    async fn cut(self) {
        loop {
            let changed = self.changed.notified();
            if self.mode.load(Ordering::SeqCst) == CUT {
                return;
            }
            changed.await;
        }
    }

    /// As with real TCP, a direction that has lost bytes delivers nothing more.
    async fn pump<R, W>(self, mut from: R, mut to: W, losing: &'static [u8])
    where
        R: AsyncReadExt + Unpin,
        W: AsyncWriteExt + Unpin,
    {
        let mut buffer = vec![0; 1 << 16];
        let mut lost = false;
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            let delay_ms = self.delay_ms.load(Ordering::SeqCst);
            if delay_ms > 0 {
                tokio::time::sleep(std::time::Duration::from_millis(delay_ms)).await;
            }
            lost |= losing.contains(&self.mode.load(Ordering::SeqCst));
            if !lost && to.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    }
}
