//! Code that several protocols share.

pub(crate) mod alternatives;
pub(crate) mod backoff;
pub(crate) mod bearer_token;
pub(crate) mod call_table;
pub(crate) mod clock_origin;
pub(crate) mod detail_budget;
#[cfg(feature = "targets")]
pub(crate) mod dial;
pub(crate) mod frame_trace;
pub(crate) mod heartbeats;
pub(crate) mod token_account;
pub(crate) mod unpacking;
pub(crate) mod xorshift;
