//! A burst of noise in a sweep of two equal configurations: slices that are divided, in random order within rounds,
//! are both affected alike, while undivided slices showed a difference.
//!
//! Seeds are random and printed; `SWEEP_SEED=… cargo test …` repeats a run.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests; seeds are printed"
)]

use crate::records;

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use plimsoll_model::comparisons::ladder::throughput::parts_per_slice;
use plimsoll_model::comparisons::ladder::{self, LadderRecord, SliceResult};
use plimsoll_report::sweep;
use serde_json::Value;

const SLICE_S: f64 = 2.0;
const SWEEPS: u64 = 200;

/// A period in which the machine is half as fast as otherwise.
struct Burst {
    from: f64,
    to: f64,
}

impl Burst {
    /// Returns the work done from `at` on for `length` seconds, at one a second.
    fn work_done(&self, at: f64, length: f64) -> f64 {
        let hit = (self.to.min(at + length) - self.from.max(at)).max(0.0);
        length - hit / 2.0
    }
}

/// Measures two equal configurations in this many slices each, which together take [`SLICE_S`].
fn measure_sweep(slices: usize, burst: &Burst, seed: u64) -> LadderRecord {
    let mut record = records::sweep();
    let length = SLICE_S / slices as f64;
    let whole = record.rungs[0].slices[0].clone();
    for rung in &mut record.rungs {
        rung.slices.clear();
    }
    let mut at = 0.0;
    for rung in ladder::slice_order(2, slices, seed).concat() {
        let mut volume = whole.volume.clone().unwrap();
        volume.elapsed_s = length;
        volume.ok = (burst.work_done(at, length) * 10_000.0) as u64;
        volume.bytes_received = volume.ok << 10;
        record.rungs[rung].slices.push(SliceResult {
            volume: Some(volume),
            ..whole.clone()
        });
        at += length;
    }
    record
}

/// Returns the files a second of each configuration, with the interval.
fn rates_with_intervals(record: &LadderRecord) -> Vec<(f64, Option<[f64; 2]>)> {
    let document = sweep::sweep_json(record);
    let links = document["links"].as_array().unwrap();
    let of = |link: &Value| {
        let interval = link["fetched_per_s_interval"].as_array().map(|ends| {
            let mut ends = ends.iter().map(|end| end.as_f64().unwrap());
            [ends.next().unwrap(), ends.next().unwrap()]
        });
        (link["fetched_per_s"].as_f64().unwrap(), interval)
    };
    links.iter().map(of).collect()
}

#[test]
fn noise_burst_keeps_equal_links_equal() {
    let seed = match std::env::var("SWEEP_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => RandomState::new().hash_one(0),
    };
    println!("SWEEP_SEED={seed}");
    let divided = parts_per_slice(Duration::from_secs_f64(SLICE_S), 1, 2, 16 << 10);
    assert!(divided > 10, "{divided}");
    let (mut far, mut claimed) = (0, 0);
    for nth in 0..SWEEPS {
        // Within the first or the second slice of the undivided order.
        let from = (nth % 2) as f64 * SLICE_S + 0.2 + 0.8 * nth as f64 / SWEEPS as f64;
        let burst = Burst {
            from,
            to: from + 0.8,
        };
        let seed = seed.wrapping_add(nth);
        let old = rates_with_intervals(&measure_sweep(1, &burst, seed));
        assert!(old.iter().all(|(_, interval)| interval.is_none()));
        let apart = |links: &[(f64, _)]| (links[0].0 / links[1].0 - 1.0).abs();
        assert!(apart(&old) > 0.19, "{old:?}");
        let new = rates_with_intervals(&measure_sweep(divided, &burst, seed));
        let [a, b] = [new[0].1.unwrap(), new[1].1.unwrap()];
        claimed += u64::from(a[1] < b[0] || b[1] < a[0]);
        assert!(apart(&new) < apart(&old), "{old:?}, {new:?}");
        far += u64::from(apart(&new) > 0.15);
    }
    // In 2 of 100, the burst affects one configuration's parts much more often.
    assert!(far * 100 <= SWEEPS * 10, "{far} of {SWEEPS}");
    assert!(claimed * 100 <= SWEEPS * 5, "{claimed} of {SWEEPS}");
}
