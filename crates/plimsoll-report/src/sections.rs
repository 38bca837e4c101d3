//! The sections that all reports share: tables, totals, times, errors, and the first sentence, which states the
//! response times.

pub(crate) mod addresses;
pub(crate) mod end_resources;
pub(crate) mod errors;
pub(crate) mod facts;
pub(crate) mod headline;
pub(crate) mod memory;
pub(crate) mod overhead;
pub(crate) mod profile;
pub(crate) mod protocol_measures;
pub(crate) mod rotation;
pub(crate) mod server_metrics;
pub(crate) mod settled_calls;
pub(crate) mod shards;
pub(crate) mod slowest;
pub(crate) mod steps;
pub(crate) mod table;
pub(crate) mod times;
pub(crate) mod totals;
