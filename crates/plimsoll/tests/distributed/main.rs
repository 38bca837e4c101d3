//! One load of several processes, and of several machines.

mod processes;
mod shards;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/terminal.rs"]
mod terminal;
