//! Scripts: users that hold several connections and do one thing after another on them.
//!
//! A [`Script`] is a state machine like a [`crate::Driver`]: it owns no socket, no task
//! and no clock. Where a driver is one connection that carries many calls, a script is
//! one user with up to [`MAX_LINKS`] connections, opened and closed as it says, whose calls
//! follow from each other. [`worker`] runs scripts, [`user`] makes one of any driver; drivers are
//! run by [`crate::worker`].

pub mod user;
pub mod worker;

mod turn;

pub use turn::{Link, MAX_LINKS, Origin, Script, Scripts, Turn};
