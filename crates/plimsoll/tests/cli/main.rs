//! The command line: what commands print and refuse, pages and files that describe them, and the plans that runs keep.

mod benchmarks;
#[path = "../../../plimsoll-plugin/tests/built/mod.rs"]
mod built;
mod commands;
mod docs;
mod guided;
mod install;
mod mcp;
mod pipelines;
mod reference;
mod saved;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/terminal.rs"]
mod terminal;
mod transcripts;
