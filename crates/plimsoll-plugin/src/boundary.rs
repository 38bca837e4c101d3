//! The boundary between Rust and C, from both sides: the host that loads and calls a plugin, and the
//! functions through which a plugin written in Rust is called.
//!
//! The code is unsafe because it calls C function pointers and reads memory to which C code points. Each unsafe block
//! states why it is sound; all of them depend on the rules at the beginning of `plimsoll_codec.h`.
#![expect(unsafe_code, reason = "the C interface of plugins: see above")]

pub mod guest;
#[cfg(feature = "host")]
pub(crate) mod host;
