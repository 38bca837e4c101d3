//! Codec plugins: shared objects that teach Plimsoll a protocol of requests and answers
//! that carry ids.
//!
//! The interface is C, and `include/plimsoll_codec.h` is its contract; [`abi`] is the same
//! in Rust. [`Codec`] is a loaded plugin, behind functions that believe nothing it says
//! ([`check`]): whatever a plugin returns becomes a frame within the bytes that are there,
//! or a [`Fault`] for which one connection is closed. [`guest`] is for plugins written in
//! Rust. Sidecar, driver and reference server call [`Codec`] and know nothing of C.
//!
//! A plugin is trusted with the process: it can be wrong, and it is survived where it says
//! so (results, lengths, panics of Rust); one that writes outside its memory is not.

#![warn(missing_docs)]

pub mod abi;
mod boundary;
#[cfg(feature = "host")]
pub mod check;
#[cfg(feature = "host")]
mod codec;
#[cfg(feature = "host")]
mod frame;

pub use boundary::guest;
#[cfg(feature = "host")]
pub use boundary::host::{LoadError, without_debug_messages};
#[cfg(feature = "host")]
pub use check::{Fault, Head};
#[cfg(feature = "host")]
pub use codec::{Codec, MAX_FRAME};
#[cfg(feature = "host")]
pub use frame::{Decoded, Frame, Kind, Make, Match, Sender};
