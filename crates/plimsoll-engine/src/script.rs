//! Scripts: simulated users with several connections, whose actions depend on each other.
//!
//! A [`Script`] is a state machine like a [`crate::Driver`]: it owns no socket, task or clock. While a driver is one
//! connection that carries many independent calls, a script is one user with up to [`MAX_LINKS`] connections, which it
//! opens and closes itself, and whose calls depend on each other. [`worker`] runs scripts, and [`user`] turns any
//! driver into a script; drivers without scripts are run by [`crate::worker`].

pub mod scenario;
pub mod user;
pub mod worker;

mod client_numbers;
mod context;
mod user_meter;

pub use context::{
    LinkId, MAX_LINKS, RequestTrace, Script, ScriptContext, ScriptFactory, ScriptStart,
};
