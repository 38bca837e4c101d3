//! Exports runs in the formats of other programs; each module writes one format.

pub mod aiperf;
pub mod bencher;
pub mod data;
pub(crate) mod export_error;
pub mod hdr_log;
pub mod lines;
pub mod live_runs;
pub mod otlp;
pub mod prometheus;
pub mod s_time;
pub mod spans;
