//! The file: parsed, checked, and turned into the policy in force. What `load` returns is checked; nothing in it is left to doubt.

pub mod model;
