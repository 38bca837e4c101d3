//! Measures the cost of the next arrival: `cargo run --release -p plimsoll-model --example schedule_cost`.

use std::time::{Duration, Instant};

use plimsoll_model::plan::{ArrivalModel, ArrivalSpacing, LoadPlan, LoadStage};
use plimsoll_model::schedule::Schedule;

#[expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "an example measures and tells its result"
)]
fn main() {
    for (name, spacing, from, to) in [
        ("constant", ArrivalSpacing::Constant, 100_000.0, 100_000.0),
        ("ramp", ArrivalSpacing::Constant, 0.0, 200_000.0),
        ("poisson", ArrivalSpacing::Poisson, 100_000.0, 100_000.0),
    ] {
        let load = LoadPlan {
            arrivals: ArrivalModel::Open(spacing),
            stages: vec![LoadStage {
                name: name.into(),
                warmup: false,
                duration: Some(Duration::from_secs(100)),
                rate_from: from,
                rate_to: to,
            }],
            ..LoadPlan::default()
        };
        let began = Instant::now();
        let (mut count, mut sum) = (0u64, 0u64);
        for arrival in Schedule::new(&load, 1).share(0, 1) {
            count += 1;
            sum = sum.wrapping_add(arrival.at);
        }
        let ns = began.elapsed().as_nanos() as f64 / count as f64;
        println!("{name}: {ns:.1} ns an arrival ({count} arrivals, sum {sum})");
    }
}
