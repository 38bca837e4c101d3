//! Comparisons of variants: ladders, and two versions of a service.

pub mod ladder;
pub mod track;
