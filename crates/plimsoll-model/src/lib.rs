//! The data model of a load test: the plan ([`Plan`]), the schedule of calls ([`schedule`]), the measurements of each
//! call ([`CallSample`], [`Outcome`]), and the run directory.
//!
//! This crate opens no sockets, speaks no TLS and reads no clocks; times are passed in as values.

#![warn(missing_docs)]

pub mod comparisons;
pub mod crypto_speeds;
pub mod formats;
pub mod law;
pub mod metrics;
pub mod objective;
pub mod plan;
pub mod plan_text;
pub mod records;
pub mod rows;
pub mod runs;
pub mod schedule;
pub mod search;
pub mod spec;
pub mod statistics;

pub use formats::fingerprint::Fingerprint;
pub use formats::time::Time;
pub use metrics::measure::{Count, StageMeasures, TimeMeasure};
pub use metrics::outcome::{FailureSource, Outcome};
pub use metrics::sample::{CallSample, ConnectPhases};
pub use plan::Plan;
pub use records::record::{RecordedInterval, StageRecord};
pub use records::recorder::Recorder;
