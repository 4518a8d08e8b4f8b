//! HTTP/1.1 on the byte level (RFC 9112), for both sides: heads read and written, bodies framed.
//!
//! Strict in what it takes: a message that two readers could cut differently is refused, never repaired, so that what goes
//! on is one well-formed message or none. Sockets, timeouts and policy belong to `listener` and `upstream`.

pub mod body;
pub mod encode;
pub mod framing;
pub mod head;
pub mod send;
pub mod timer;
pub mod trailer;
pub mod websocket;

pub use body::{Decoder, Progress};
pub use framing::Framing;
pub use head::HeadError;
pub use send::{Mode, SendError, Sender};
pub use timer::Timer;
