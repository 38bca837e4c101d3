//! Reports and exports of runs.
//!
//! Everything here is a pure function of run directories: [`terminal`] for people, [`json`] for programs,
//! [`exports::lines`] for the line-per-request files of other load generators, [`exports::aiperf`] in the format of
//! AIPerf, [`exports::bencher`] in that of Bencher, [`comment`] for pull requests, [`exports::spans`] for collectors of
//! traces, [`exports::data`] as tables for notebooks, and [`compare`] for two groups of runs. Nothing here measures,
//! decides or opens a socket; the binary prints the texts that these functions return.

#![warn(missing_docs)]

pub mod comment;
pub mod compare;
pub mod exports;
pub mod history;
pub mod html;
pub mod json;
pub mod junit;
pub mod ladder;
pub mod lanes;
pub mod markdown;
pub mod search;
mod sections;
pub mod sentences;
pub mod sweep;
pub mod terminal;
pub mod track;

pub use exports::export_error::ExportError;
pub use plimsoll_model::formats::quantity;
