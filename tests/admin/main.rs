//! The admin listener over a real socket, in front of a process made of fixed answers.

mod access;
mod pages;
mod process;
