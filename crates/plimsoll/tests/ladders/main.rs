//! Commands that measure several loads and compare them: ladders, sweeps, tracks of versions, and searches.

mod find;
mod ladder;
#[path = "../support/mod.rs"]
mod support;
mod track;
mod turns;
