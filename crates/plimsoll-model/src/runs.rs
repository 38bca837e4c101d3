//! Stored runs: of one load, of several lanes, and the profiles of their processes.

pub mod lanes;
pub mod profile;
pub mod run;
