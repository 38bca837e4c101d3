//! Runs as they are stored: one load, its lanes, and its profile.

pub mod lanes;
pub mod profile;
pub mod run;
