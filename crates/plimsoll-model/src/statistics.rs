//! What a sample honestly shows, and no more.
//!
//! [`quantile`]: which percentiles a sample supports, and how sure they are.
//! [`rank`]: whether two groups of runs differ, by ranks. Both are distribution-free:
//! latencies are never normal. [`rate`]: how well a mean rate is known. Callers: [`crate::run::summary`] and the reports.

pub mod autocorrelation;
pub mod bootstrap;
pub mod distribution;
pub mod paired;
pub mod quantile;
pub mod rank;
pub mod rate;
