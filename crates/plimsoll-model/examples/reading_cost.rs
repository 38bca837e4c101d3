//! Measures the cost of reading a run directory: `cargo run --release -p plimsoll-model --example reading_cost DIR`.

#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "an example measures and prints"
)]

use std::path::Path;
use std::time::{Duration, Instant};

use plimsoll_model::runs::run::{Run, RunError};

fn main() -> Result<(), RunError> {
    let dir = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    let began = Instant::now();
    let run = Run::load(Path::new(&dir))?;
    let with_figures = began.elapsed();
    let began = Instant::now();
    let mut intervals = 0_u32;
    run.for_each_interval(|_| intervals += 1)?;
    let alone = began.elapsed();
    let each = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(intervals.max(1));
    println!(
        "{intervals} intervals: {:.1} µs each to read with the figures, {:.1} µs to decode alone",
        each(with_figures),
        each(alone)
    );
    Ok(())
}
