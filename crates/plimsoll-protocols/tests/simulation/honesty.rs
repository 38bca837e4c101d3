//! Compares recorded times with calculated ones, for a server that freezes once.
//!
//! Calls that are due during the freeze are sent late. A tool that measures from the send omits this wait (coordinated
//! omission); measured from the due time, the times of all calls follow from the schedule
//! ([`FreezeScenario::expected_times`]). In simulated time no other process delays anything, so bounds are strict
//! on both sides; `truth.rs` of the program's tests checks the lower bounds in real time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use plimsoll_engine::transport::network::simulated::NetworkConditions;
use plimsoll_model::Outcome;
use plimsoll_model::plan::{ArrivalModel, ArrivalSpacing, ConnectionReuse, LoadPlan, LoadStage};
use plimsoll_model::records::record::{StageRecord, TimeHistogram};
use plimsoll_protocols::grpc::canned::{CannedOptions, CannedServer};
use plimsoll_protocols::grpc::{GrpcProtocol, GrpcRequest};

use super::grpc::{FaultyGrpcServer, unary};
use super::{START, load, run_under};

const MS: u64 = 1_000_000;

/// The round trip of the simulated network ([`NetworkConditions::without_faults`]): 50 µs each way. Nanoseconds.
const ROUND_TRIP: u64 = 100_000;

/// The tolerance of a call: some iterations of the event loop (100 ns each in simulated time) for all calls
/// that are sent or answered at one moment. Nanoseconds.
const LOOP_TOLERANCE: u64 = 20_000;

/// A load of constant rate and a server that answers after `delay` and freezes once. All times are in
/// nanoseconds.
struct FreezeScenario {
    rate: u64,
    seconds: u64,
    delay: u64,
    freeze_after: u64,
    freeze: u64,
    /// The limit of calls in flight.
    streams: Option<u32>,
}

/// The expected times of all calls, sorted. Nanoseconds.
struct ExpectedTimes {
    response: Vec<u64>,
    service: Vec<u64>,
}

impl FreezeScenario {
    fn calls(&self) -> u64 {
        self.rate * self.seconds
    }

    /// Computes the expected times. Call k is due at k / rate. It is sent then, or when a stream is free;
    /// calls are sent in order. Its response is sent `delay` later, or, if that falls into the freeze, at the
    /// freeze's end.
    fn expected_times(&self) -> ExpectedTimes {
        let (begin, end) = (self.freeze_after, self.freeze_after + self.freeze);
        let mut busy: BinaryHeap<Reverse<u64>> = BinaryHeap::new();
        let (mut response, mut service) = (Vec::new(), Vec::new());
        for k in 0..self.calls() {
            let due = k * 1_000_000_000 / self.rate;
            while busy.peek().is_some_and(|Reverse(free)| *free <= due) {
                busy.pop();
            }
            let sent = match self.streams {
                Some(streams) if busy.len() >= streams as usize => {
                    let Reverse(free) = busy.pop().expect("there is at least one stream");
                    free.max(due)
                }
                _ => due,
            };
            let ready = sent + self.delay;
            let done = if (begin..end).contains(&ready) {
                end
            } else {
                ready
            };
            busy.push(Reverse(done));
            response.push(done - due);
            service.push(done - sent);
        }
        response.sort_unstable();
        service.sort_unstable();
        ExpectedTimes { response, service }
    }

    fn run(&self) -> StageRecord {
        let freeze = START.plus_nanos(self.freeze_after);
        let mut server = FaultyGrpcServer {
            canned: CannedServer::new(CannedOptions {
                answered_by_caller: true,
                max_concurrent_streams: self.streams,
                ..CannedOptions::default()
            }),
            connections: BTreeMap::new(),
            delay: Duration::from_nanos(self.delay),
            stall: Some((freeze, freeze.plus_nanos(self.freeze))),
            goaway_at: None,
            broken: Vec::new(),
        };
        let rate = self.rate as f64;
        let load = LoadPlan {
            arrivals: ArrivalModel::Open(ArrivalSpacing::Constant),
            stages: vec![LoadStage::constant_rate(
                "steady",
                Duration::from_secs(self.seconds),
                rate,
            )],
            connections: 1,
            reuse: ConnectionReuse::Always,
            calls: None,
            deadline: None,
            drain: Some(Duration::from_secs(10)),
            ..load(1)
        };
        let call = unary(1);
        let protocol = GrpcProtocol::new(&GrpcRequest {
            call: &call,
            authority: "localhost:1",
            secure: false,
            deadline: load.deadline,
        })
        .unwrap();
        let mut total = run_under(
            NetworkConditions::faultless(1),
            load,
            &mut server,
            protocol,
            None,
        );
        assert_eq!(server.broken, [""; 0]);
        let record = total.stage_mut(0).clone();
        assert_eq!(record.due, self.calls());
        assert_eq!(record.outcomes.get(Outcome::Ok), self.calls());
        record
    }
}

/// Returns the percentile `p` by the nearest-rank method.
fn percentile(sorted: &[u64], p: f64) -> u64 {
    let rank = (p * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

fn recorded_percentile(times: &TimeHistogram, p: f64) -> u64 {
    times
        .histogram()
        .expect("calls were recorded")
        .value_at_quantile(p)
}

/// Checks that each percentile of `times` equals that of `expected`, to the histogram's three digits and one
/// call.
#[track_caller]
fn assert_percentiles(what: &str, times: &TimeHistogram, expected: &[u64], percentiles: &[f64]) {
    for p in percentiles {
        let (seen, expected) = (recorded_percentile(times, *p), percentile(expected, *p));
        // One call more or less changes the time by at most a thousandth of the freeze.
        let low = expected - expected / 250;
        let high = expected + expected / 250 + ROUND_TRIP + LOOP_TOLERANCE;
        assert!(
            (low..=high).contains(&seen),
            "{what} at {p}: {seen} ns; by arithmetic {expected} ns"
        );
    }
}

/// The load has 40,000 calls in 20 s, answered in 5 ms except for a freeze of 500 ms. The 1,000 calls that are due in
/// the freeze (or in the 5 ms before it) wait for its end, from 505 ms down to 5 ms in steps of 0.5 ms. The slowest
/// percent are the 400 that wait longest, so p99 is 505 − 400 × 0.5 = 305 ms, and p99.9 (40 calls) is 485 ms.
#[test]
fn percentiles_include_half_second_freeze() {
    let frozen = FreezeScenario {
        rate: 2000,
        seconds: 20,
        delay: 5 * MS,
        freeze_after: 5000 * MS,
        freeze: 500 * MS,
        streams: None,
    };
    let expected = frozen.expected_times().response;
    assert_eq!(percentile(&expected, 0.5), 5 * MS);
    assert_eq!(percentile(&expected, 0.99) / MS, 305);
    assert_eq!(percentile(&expected, 0.999) / MS, 485);
    assert_eq!(percentile(&expected, 1.0) / MS, 505);
    let record = frozen.run();
    let percentiles = [0.5, 0.95, 0.99, 0.999, 1.0];
    assert_percentiles("response", &record.response, &expected, &percentiles);
}

/// The same freeze with a server that allows 100 concurrent calls. 10 are in flight when it begins and 90
/// more are sent, then no more can be: of 20,000 calls only 100, half a percent, are slow from their send, so
/// the p99 of the service time does not show the freeze. Tools that measure from the send report this value.
/// 910 more calls were due during the freeze.
#[test]
fn stream_wait_counts_only_as_response_time() {
    let frozen = FreezeScenario {
        rate: 2000,
        seconds: 10,
        delay: 5 * MS,
        freeze_after: 3000 * MS,
        freeze: 500 * MS,
        streams: Some(100),
    };
    let expected = frozen.expected_times();
    assert_eq!(percentile(&expected.service, 0.99), 5 * MS);
    // p99 is the 200th longest time. The 100 calls in flight are the longest, so it is the 100th of those that
    // waited for a stream: due 95 ms into the freeze, sent at its end, and answered 5 ms later.
    assert!((405..=415).contains(&(percentile(&expected.response, 0.99) / MS)));
    let record = frozen.run();
    assert_percentiles("service", &record.service, &expected.service, &[0.5, 0.99]);
    // After the freeze, the backlog takes ten rounds of all streams, one round trip each.
    let behind = 10 * ROUND_TRIP;
    for p in [0.99, 1.0] {
        let (seen, least) = (
            recorded_percentile(&record.response, p),
            percentile(&expected.response, p),
        );
        let range = least - least / 250..=least + least / 250 + behind;
        assert!(range.contains(&seen), "{p}: {seen} ns, {range:?}");
    }
    // The wait counts as lag, but not as lag of the generator.
    assert!(recorded_percentile(&record.lag, 0.99) > 300 * MS);
    assert!(recorded_percentile(&record.pacing, 1.0) < LOOP_TOLERANCE);
}

/// The load has 10,000 calls in 10 s with a freeze of one second. 1,000 of them wait, from 1,005 ms down to 5 ms in
/// steps of 1 ms. The slowest percent are 100 of them, so p99 is 905 ms; the slowest 5 % are 500, so p95 is
/// 505 ms.
#[test]
fn percentiles_include_one_second_freeze() {
    let frozen = FreezeScenario {
        rate: 1000,
        seconds: 10,
        delay: 5 * MS,
        freeze_after: 3000 * MS,
        freeze: 1000 * MS,
        streams: None,
    };
    let expected = frozen.expected_times().response;
    assert_eq!(percentile(&expected, 0.99) / MS, 905);
    assert_eq!(percentile(&expected, 0.95) / MS, 505);
    let record = frozen.run();
    let percentiles = [0.5, 0.95, 0.99, 1.0];
    assert_percentiles("response", &record.response, &expected, &percentiles);
    // Calls were sent one by one when they were due: a burst would show in the lag.
    assert!(recorded_percentile(&record.lag, 1.0) < LOOP_TOLERANCE);
}
