//! The answers that are our own.
