//! The data model of a load test: the plan ([`Plan`]), the schedule of calls ([`schedule`]), the measurements of each
//! call ([`CallSample`], [`Outcome`]), and the run directory.
//!
//! This crate opens no sockets, speaks no TLS and reads no clocks; times are passed in as values.

#![warn(missing_docs)]

mod codes;
mod document;
mod fingerprint;
pub mod gate;
pub mod input;
pub mod instrument;
mod json_line;
pub mod labels;
pub mod ladder;
pub mod lanes;
pub mod law;
pub mod crypto_speeds;
pub mod measure;
mod mixing;
mod named_enum;
pub mod objective;
pub mod outcome;
pub mod output;
pub mod plan;
pub mod plan_text;
pub mod profile;
pub mod quantity;
pub mod record;
pub mod recorder;
pub mod recording;
pub mod redaction;
pub mod run;
pub mod sample;
pub mod schedule;
pub mod search;
pub mod spec;
pub mod statistics;
pub mod suggest;
pub mod template;
pub mod time;
mod times;
pub mod track;
pub mod units;

pub use fingerprint::Fingerprint;
pub use measure::{Count, StageMeasures, TimeMeasure};
pub use outcome::{FailureSource, Outcome};
pub use plan::Plan;
pub use record::{RecordedInterval, StageRecord};
pub use recorder::Recorder;
pub use sample::{CallSample, ConnectPhases};
pub use time::Time;
