//! Statistics of samples, with their uncertainty.
//!
//! [`quantile`]: which percentiles a sample supports, and their confidence. [`rank`]: whether two groups of runs
//! differ. Both are distribution-free, since latencies are never normally distributed. [`change_points`]: where a
//! series of runs changes its level. [`rate`]: the uncertainty of a mean rate. [`share`]: the interval of a share, and
//! of a difference of shares. [`crate::runs::run::summary`] and the reports use these statistics.

pub mod autocorrelation;
pub mod bootstrap;
pub mod change_points;
pub mod distribution;
pub mod paired;
pub mod quantile;
pub mod rank;
pub mod rate;
pub mod share;
