//! The measurements of a call (outcome, times and counts), and gates that limit differences between variants.

pub(crate) mod codes;
pub mod gate;
pub mod measure;
pub mod outcome;
pub mod sample;
pub(crate) mod times;
pub mod token_times;
