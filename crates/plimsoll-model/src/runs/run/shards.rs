//! Figures of each shard of a run, which are part of the header of `run.json`, since the merged intervals don't contain
//! them. They matter because a single shard at its limit makes the whole run invalid.

use serde::{Deserialize, Serialize};

/// How a shard ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShardState {
    /// The shard generated its whole part of the load.
    Complete,
    /// The shard was stopped early, and delivered its measurements up to then.
    Stopped,
    /// The shard failed and reported why.
    Failed,
    /// The shard stopped responding.
    Lost,
}

/// The figures of one shard in `run.json`. As in the run's totals, the warm-up is left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardFigures {
    /// The shard's number, from 0.
    pub shard: u32,
    /// How it ended.
    pub state: ShardState,
    /// The reason, where the shard is not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Calls that were due.
    pub due: u64,
    /// Calls that ended ok.
    pub ok: u64,
    /// Calls that ended with an error.
    pub errors: u64,
    /// Calls that were due and never sent.
    pub not_started: u64,
    /// Calls that ended, divided by the time over which they were recorded.
    pub achieved_per_s: Option<f64>,
    /// The 99th percentile of response times; `None`, here and in the next two fields: too few calls.
    pub response_p99_us: Option<f64>,
    /// The 99th percentile of the time from when calls were due to when they were sent.
    pub lag_p99_us: Option<f64>,
    /// The 99th percentile of how late the shard noticed that calls were due.
    pub pacing_p99_us: Option<f64>,
    /// Cores that its processes used: CPU time divided by elapsed time.
    pub cores_used: Option<f64>,
    /// The highest share of a core that its busiest worker used.
    pub busiest_worker_ratio: f64,
    /// The most connections that were open at the end of an interval.
    pub connections_open_max: u64,
    /// The clock of the rendezvous store minus the shard's clock, in µs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_offset_us: Option<i64>,
    /// The possible error of that offset, in µs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_uncertainty_us: Option<u64>,
    /// Descriptions of the limits that the shard reached; each of them makes the run invalid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<String>,
}
