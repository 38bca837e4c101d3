//! Stored runs: of one load, of several lanes, the profiles of their processes, and the metrics of their servers.

pub mod lanes;
pub mod profile;
pub mod run;
pub mod server_metrics;
