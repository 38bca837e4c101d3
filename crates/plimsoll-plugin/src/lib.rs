//! Codec plugins: shared objects that add a protocol whose requests and answers carry ids.
//!
//! The interface is C, with `include/plimsoll_codec.h` as its contract; [`abi`] mirrors it in Rust. [`Codec`] is a
//! loaded plugin behind functions that validate all its results ([`check`]): each result becomes a frame within the
//! available bytes, or a [`CodecFault`], for which one connection is closed. [`guest`] is for plugins written in Rust.
//! The sidecar, the driver and the reference server call [`Codec`] and do not depend on C.
//!
//! A plugin is trusted with the process. Errors that it reports or that are visible in its results (result codes,
//! lengths, Rust panics) are handled; writes outside its own memory are not.

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
pub use check::{CodecFault, PartialFrame};
#[cfg(feature = "host")]
pub use codec::{Codec, DEFAULT_MAX_FRAME_BYTES};
#[cfg(feature = "host")]
pub use frame::{DecodeResult, Frame, FrameKind, Match, NewFrameKind, SenderRole};
