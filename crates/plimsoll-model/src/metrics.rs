//! What is measured of a call: its outcome, its times, its counts, and gates on their differences.

pub(crate) mod codes;
pub mod gate;
pub mod measure;
pub mod outcome;
pub mod sample;
pub(crate) mod times;
