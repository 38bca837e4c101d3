//! One load from plan to result: plans are resolved, the load is run in this process or several, and its run and
//! documents are written.

pub(crate) mod abort;
pub(crate) mod advice;
pub(crate) mod barrier;
pub(crate) mod documents;
pub(crate) mod execution;
mod json_reports;
pub(crate) mod lanes;
pub(crate) mod multiprocess;
pub(crate) mod parallel_loads;
pub(crate) mod planning;
pub(crate) mod precision;
pub(crate) mod presentation;
pub(crate) mod process;
pub(crate) mod profiler;
pub(crate) mod protocols;
pub(crate) mod run_folders;
pub(crate) mod server_metrics;
