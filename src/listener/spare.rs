//! One core's read buffers that no connection has in use: an idle connection keeps none.

use bytes::BytesMut;
use std::cell::RefCell;

/// Room made for each read; a new buffer is so large.
pub const READ: usize = 8 * 1024;
/// A buffer that one large head has made larger goes back to the allocator.
const KEPT: usize = 2 * READ;
/// More than a core's event loop finds ready in one turn is not worth keeping.
const MAX_SPARE: usize = 64;

thread_local! {
    static SPARE: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
}

/// A buffer with room for a read.
pub fn take() -> BytesMut {
    SPARE.with_borrow_mut(Vec::pop).unwrap_or_else(|| BytesMut::with_capacity(READ))
}

/// Gives a buffer back; what is in it is dropped.
pub fn put(mut buffer: BytesMut) {
    buffer.clear();
    if buffer.capacity() > 0 && buffer.capacity() <= KEPT {
        SPARE.with_borrow_mut(|spare| {
            if spare.len() < MAX_SPARE {
                spare.push(buffer);
            }
        });
    }
}
