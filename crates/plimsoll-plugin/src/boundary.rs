//! Where Rust and C meet, from both sides: the host that loads a plugin and calls it, and
//! the functions that a plugin written in Rust is called by.
//!
//! The only unsafe code of the workspace, because nothing else can call through a C
//! function pointer or read memory that C points to. Each block says why it is sound; all
//! of them rest on the rules that stand at the head of `plimsoll_codec.h`.
#![expect(unsafe_code, reason = "the C interface of plugins: see above")]

pub mod guest;
#[cfg(feature = "host")]
pub(crate) mod host;
