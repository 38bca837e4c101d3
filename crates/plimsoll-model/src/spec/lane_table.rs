//! The keys of `[lanes.NAME]`, as they are read.

use serde::{Deserialize, Serialize};
use toml::Value;

/// One of several kinds of calls in a run. Tables are merged with the plan's, key by key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LaneTable {
    /// This lane's share of the arrivals: with the weights 9 and 1, nine arrivals in ten. A whole number; all weights
    /// together are at most 10000. Default 1.
    pub weight: Option<Value>,
    /// The lane's target. Default: the plan's.
    pub target: Option<Value>,
    /// The seed of the lane's random choices. Default: the plan's.
    pub seed: Option<Value>,
    /// Log every call of this lane. Default: the plan's setting.
    pub requests: Option<Value>,
    /// Send `traceparent` with each request of this lane, and list its slowest calls. Default: the plan's setting.
    pub traceparent: Option<Value>,
    /// Keep a random sample of this many calls of this lane for spans. Default: the plan's setting.
    pub span_sample: Option<Value>,
    /// How the lane's links are secured. Default: the plan's; none for a plaintext target.
    pub tls: Option<Value>,
    /// The lane's file of rows. Default: the plan's.
    pub rows: Option<Value>,
    /// The lane's call. Default: the plan's; a lane with another protocol inherits nothing.
    pub call: Option<Value>,
    /// The steps of the lane's journey, `[[lanes.NAME.steps]]`: each of the lane's arrivals is a user. Default: the plan's.
    pub steps: Option<Value>,
    /// The lane's keys of `[load]`, such as `connections` and `deadline`. All lanes share `rate` or `steps`,
    /// `arrivals`, `warmup`, `duration`, `calls` and `processes`, so the plan sets these.
    pub load: Option<Value>,
    /// The limits that this lane must meet, besides the plan's.
    pub objective: Option<Value>,
    /// The server process to watch for this lane. Default: the plan's.
    pub watch: Option<Value>,
}
