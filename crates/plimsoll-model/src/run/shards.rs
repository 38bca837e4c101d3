//! What each shard of a run did, beside the whole: one that was at its limit makes the whole
//! invalid, however well the others did. It stands in the head of `run.json`, since the merged intervals no
//! longer know it.

use serde::{Deserialize, Serialize};

/// How a shard ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShardState {
    /// It carried its part out.
    Complete,
    /// It was stopped before its time, and handed over what it had measured.
    Stopped,
    /// It failed, and reported why.
    Failed,
    /// It fell silent.
    Lost,
}

/// One shard in `run.json`. Without warm-up, like the run's totals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardFigures {
    /// The shard's number, from 0.
    pub shard: u32,
    /// How it ended.
    pub state: ShardState,
    /// Why, where it is not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Arrivals whose time had come.
    pub due: u64,
    /// Calls that ended ok.
    pub ok: u64,
    /// Calls that ended with an error.
    pub errors: u64,
    /// Calls that were due, and never sent.
    pub not_started: u64,
    /// Calls that ended, by the time over which they were recorded.
    pub achieved_per_s: Option<f64>,
    /// The response time; `None`, as the next two: too few calls.
    pub response_p99_us: Option<f64>,
    /// Time from when calls were due to when they were sent.
    pub lag_p99_us: Option<f64>,
    /// How late the shard noticed that calls were due.
    pub pacing_p99_us: Option<f64>,
    /// Cores that its processes used, of CPU time by time passed.
    pub cores_used: Option<f64>,
    /// The share of a core that its busiest worker used, at most.
    pub busiest_worker_ratio: f64,
    /// The most connections that were open at the end of an interval.
    pub connections_open_max: u64,
    /// The rendezvous store's clock less the shard's, and how far from that it may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_offset_us: Option<i64>,
    /// The possible error of that offset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_uncertainty_us: Option<u64>,
    /// Why the shard was at its own limit: each makes the run invalid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<String>,
}
