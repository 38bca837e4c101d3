//! Reports and exports of runs.
//!
//! Everything here is a pure function of run directories: [`terminal`] for people, [`json`] for programs, [`lines`] for
//! the line-per-request files of other load generators, [`aiperf`] in the format of AIPerf, [`bencher`] in that of
//! Bencher, [`comment`] for pull requests, [`spans`] for collectors of traces, [`data`] as tables for notebooks, and
//! [`compare`] for two groups of runs. Nothing here measures, decides or opens a socket; the binary prints the texts
//! that these functions return.

#![warn(missing_docs)]

mod addresses;
pub mod aiperf;
mod answer;
pub mod bencher;
pub mod closing;
pub mod comment;
pub mod compare;
pub mod data;
mod ends;
mod errors;
pub mod explanation;
mod export;
mod facts;
pub mod hdr_log;
pub mod history;
pub mod html;
pub mod json;
pub mod junit;
pub mod ladder;
pub mod lanes;
pub mod lines;
pub mod markdown;
mod measures;
mod memory;
pub mod ongoing;
pub mod otlp;
mod overhead;
mod profile;
pub mod prometheus;
mod rotation;
pub mod s_time;
pub mod search;
mod settled;
mod shards;
mod slowest;
pub mod spans;
mod steps;
pub mod sweep;
mod table;
pub mod terminal;
mod times;
mod totals;
pub mod track;

pub use export::ExportError;
pub use plimsoll_model::quantity;
