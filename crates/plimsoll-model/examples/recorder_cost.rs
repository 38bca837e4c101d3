//! Measures the cost of recording a call and of writing an interval: `cargo run --release -p plimsoll-model --example
//! recorder_cost`.

#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "an example measures and prints"
)]

use std::hint::black_box;
use std::time::Instant;

use plimsoll_model::runs::run::IntervalRecord;
use plimsoll_model::{CallSample, Outcome, Recorder, Time};

/// A batch is shorter than a scheduler time slice, so that the fastest one had the core to itself.
const CALLS: u64 = 100_000;

fn main() {
    let mut recorder = Recorder::new(2);
    // Response times between 0.1 and 7 ms, in an order that the branch predictor can't learn.
    let samples: Vec<CallSample> = (0..65_536u64)
        .map(|i| {
            let spread = i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
            CallSample {
                number: i,
                arrival: Time(1_000_000),
                sent: Time(1_000_000 + spread % 3_000),
                first_byte: Time(1_090_000 + spread % 6_900_000),
                done: Time(1_100_000 + spread % 6_900_000),
                stage: 1,
                outcome: Outcome::Ok,
                bytes_sent: 128,
                bytes_received: 64,
            }
        })
        .collect();
    let mut best = f64::INFINITY;
    let mut best_clear = f64::INFINITY;
    let mut spare = None;
    for _ in 0..200 {
        let start = Instant::now();
        for i in 0..CALLS {
            let sample = &samples[(i & 65_535) as usize];
            recorder.stage_mut(1).due += 1;
            recorder.record_call(black_box(sample));
        }
        best = best.min(start.elapsed().as_nanos() as f64 / CALLS as f64);
        let mut taken = recorder.take_interval(spare.take());
        let start = Instant::now();
        taken.clear();
        best_clear = best_clear.min(start.elapsed().as_nanos() as f64 / 1e3);
        spare = Some(taken);
    }
    for i in 0..10_000 {
        recorder.stage_mut(1).pacing.record(i * 3);
        recorder.record_call(&samples[i as usize]);
    }
    let taken = recorder.take_interval(spare.take());
    let record = IntervalRecord {
        stages: taken
            .recorded_stages()
            .map(|(i, s)| (i, s.clone()))
            .collect(),
        ..IntervalRecord::default()
    };
    let start = Instant::now();
    let line = record.to_line();
    println!(
        "an interval of 10,000 calls as a line: {:.0} µs, {} bytes",
        start.elapsed().as_nanos() as f64 / 1e3,
        line.len()
    );
    println!("clearing an interval: {best_clear:.0} µs");
    println!("recording one call: {best:.1} ns");
}
