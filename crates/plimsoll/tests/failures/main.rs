//! Faults, floods, hostile servers and bad input: what ends how, and with which message.

mod faults;
mod floods;
mod hostile;
mod hostile_server;
#[path = "../support/mod.rs"]
mod support;
