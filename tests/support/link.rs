//! A TCP link to a node that can be broken: what goes over it can be dropped in one direction or both, as if a cable had
//! been cut without a word, or every connection refused.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub const PASS: u8 = 0;
/// Nothing arrives in either direction, nothing is closed.
pub const BLACK_HOLE: u8 = 1;
/// The node hears everything, and its replies are lost.
pub const DROP_REPLIES: u8 = 2;

#[derive(Clone, Debug)]
pub struct Link {
    port: u16,
    mode: Arc<AtomicU8>,
    connections: Arc<AtomicU64>,
}

impl Link {
    /// Call it inside a runtime; the link lives as long as the runtime.
    pub async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let port = listener.local_addr().expect("a bound address").port();
        let link = Self { port, mode: Arc::default(), connections: Arc::default() };
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
    }

    /// How many connections were made so far.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    async fn carry(self, near: TcpStream, target: SocketAddr) {
        let Ok(far) = TcpStream::connect(target).await else { return };
        let (near_read, near_write) = near.into_split();
        let (far_read, far_write) = far.into_split();
        let there = self.clone().pump(near_read, far_write, &[BLACK_HOLE]);
        let back = self.pump(far_read, near_write, &[BLACK_HOLE, DROP_REPLIES]);
        // Either end's closing closes both.
        tokio::select! { () = there => {}, () = back => {} }
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
            lost |= losing.contains(&self.mode.load(Ordering::SeqCst));
            if !lost && to.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    }
}
