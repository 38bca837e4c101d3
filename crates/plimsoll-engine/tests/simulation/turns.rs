//! Tests of closed loops that alternate in batches.

use plimsoll_engine::host::resources::BatchMeter;
use plimsoll_model::plan::{BatchSchedule, batch_start_window};
use plimsoll_model::schedule::batches::shuffle_batches;

use super::*;

const SLOT: Duration = Duration::from_millis(110);
const START: Time = Time(5_000_000_000);
/// Number of rounds; the first is the warm-up.
const ROUNDS: u32 = 9;

fn load_in_batches(reuse: ConnectionReuse, index: u32) -> LoadPlan {
    let clients = ArrivalModel::Closed {
        clients: 4,
        think: Duration::ZERO,
    };
    let mut load = load(clients, 0.0, 2);
    load.reuse = reuse;
    load.batches = Some(BatchSchedule {
        of: 2,
        index,
        share: 1,
        calls: 1,
        seed: 3,
        read_cpu: true,
        slot: Some(SLOT),
    });
    let mut warmup = load.stages[0].clone();
    load.stages[0].duration = Some(SLOT * 2 * (ROUNDS - 1));
    warmup.warmup = true;
    warmup.duration = Some(SLOT * 2);
    load.stages.insert(0, warmup);
    load
}

/// Runs one of two alternating loads; returns its record and the number of calls that its server received.
fn run_batches(load: LoadPlan, pauses: Vec<(Time, Duration)>) -> (RecordedInterval, u64) {
    let mut server = counting();
    let mut control = new_control(None);
    {
        let weather = NetworkConditions {
            pauses,
            ..NetworkConditions::faultless(1)
        };
        let network = SimulatedNetwork::new(&mut server, weather);
        let mut worker = worker_with(load, network, 1, Ids::default(), |share| {
            share.keep_requests = true;
        });
        worker.set_batch_meter(Some(BatchMeter::default()));
        worker.establish_connections(&mut control).unwrap();
        control.start = Some(START);
        worker.run(START, &mut control).unwrap();
    }
    (control.total, server.calls.iter().sum())
}

#[test]
fn closed_loop_calls_stay_within_batches() {
    for reuse in [ConnectionReuse::Always, ConnectionReuse::Never] {
        for index in 0..2 {
            let (total, seen) = run_batches(load_in_batches(reuse, index), Vec::new());
            let numbers: Vec<u64> = total.turns.iter().map(|turn| turn.batch).collect();
            // The last entry holds the result of the batch before it.
            assert_eq!(numbers, Vec::from_iter(0..=u64::from(ROUNDS)));
            let done: Vec<_> = total.turns.iter().map(|turn| turn.done.unwrap()).collect();
            let mut calls = 0;
            for (round, two) in (0..).zip(done.windows(2)) {
                let place = shuffle_batches(2, round, 3)
                    .iter()
                    .position(|turn| *turn == index);
                let begun = START + SLOT * (2 * round as u32 + place.unwrap() as u32);
                assert!(two[0].began_ns - begun.0 < MS, "round {round}: {two:?}");
                assert!(two[1].ended_ns < (begun + SLOT).0, "round {round}: {two:?}");
                let is_its = |request: &&plimsoll_model::records::record::RequestRecord| {
                    let arrival = request.sample.arrival;
                    arrival >= begun && arrival <= begun + batch_start_window(SLOT)
                };
                let of_turn: Vec<_> = total.requests.iter().filter(is_its).collect();
                let ended = of_turn.iter().map(|request| request.sample.done.0).max();
                assert!(
                    two[1].ended_ns - ended.unwrap() < MS,
                    "round {round}: {two:?}"
                );
                // Four at a time, each taking a millisecond plus latency; with a connection of its own, twice as long.
                let ok = two[1].ok - two[0].ok;
                assert_eq!(ok, of_turn.len() as u64);
                assert!(ok > 150, "round {round}: {ok}");
                calls += ok;
            }
            let recorded: u64 = total
                .recorded_stages()
                .map(|(_, stage)| stage.ok_calls())
                .sum();
            assert_eq!((calls, recorded), (seen, seen));
            let warm = total.stages[0].as_ref().unwrap().ok_calls();
            assert_eq!(warm, done[1].ok, "the warm-up is one turn");
        }
    }
}

#[test]
fn missed_batch_loses_no_calls() {
    // Longer than a batch, so that at least one batch is missed entirely.
    let pauses = vec![(START + SLOT * 4, SLOT * 3)];
    let (total, seen) = run_batches(load_in_batches(ConnectionReuse::Always, 0), pauses);
    let numbers: Vec<u64> = total.turns.iter().map(|turn| turn.batch).collect();
    assert!(numbers.len() < ROUNDS as usize + 1, "{numbers:?}");
    assert!(numbers.is_sorted() && numbers.last() == Some(&u64::from(ROUNDS)));
    assert_eq!(total.turns.last().unwrap().done.unwrap().ok, seen);
}
