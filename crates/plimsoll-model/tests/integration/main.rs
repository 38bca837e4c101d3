//! Searches, decisions and the run format, as the other crates use them.

mod path;
mod queue;
mod run_format;
mod search;
mod search_queue;
mod traced;
mod track_decisions;
