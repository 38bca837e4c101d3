//! Tests of limits of calls in flight and of recorded arrivals, with calculated results.

use plimsoll_model::Count;
use plimsoll_model::plan::{InFlightLimit, WhenFull};
use plimsoll_model::rows::recording::{Recording, RecordingOptions};

use super::*;

/// Returns a load of one call per millisecond for two seconds, each answered after 5.1 ms, with at most four
/// in flight.
fn load_with_limit(when_full: WhenFull) -> LoadPlan {
    LoadPlan {
        deadline: None,
        in_flight_limit: Some(InFlightLimit {
            calls: 4,
            when_full,
        }),
        ..load(ArrivalModel::Open(ArrivalSpacing::Constant), 1000.0, 4)
    }
}

fn time_at_limit_ms(record: &StageRecord) -> f64 {
    record.measures.counter(Count::LimitReached) as f64 / 1e6
}

/// Calls 0 to 3 are sent, and 4 and 5 find four in flight. The first ends at 5.1 ms, so this repeats every
/// six calls. In each 6 ms four are in flight for 2.1 ms, and three times for 0.1 ms.
#[test]
fn calls_beyond_limit_are_shed() {
    let record = simulate(
        load_with_limit(WhenFull::Shed),
        NetworkConditions::faultless(1),
        echo(5),
    );
    assert_all_counted(&record);
    assert_eq!(record.due, 2_000);
    assert_eq!(
        (record.ok_calls(), record.outcomes.get(Outcome::NotSent)),
        (1_334, 666)
    );
    let reached = time_at_limit_ms(&record);
    assert!((795.0..820.0).contains(&reached), "{reached} ms");
    assert!(micros(&record.response, 1.0) < 5_200.0);
    assert_eq!(record.measures.counter(Count::LimitWaits), 0);
}

/// Four calls per 5.1 ms: the last one is due at 1,999 ms and sent after 1,996 others in groups of four.
#[test]
fn calls_beyond_limit_wait_in_order() {
    let record = simulate(
        load_with_limit(WhenFull::Wait),
        NetworkConditions::faultless(1),
        echo(5),
    );
    assert_all_counted(&record);
    assert_eq!((record.due, record.ok_calls()), (2_000, 2_000));
    assert_eq!(record.measures.counter(Count::LimitWaits), 1_996);
    assert_eq!(
        (record.waited_for_stream, record.waited_for_connection),
        (0, 0)
    );
    let reached = time_at_limit_ms(&record);
    assert!((1_990.0..1_997.1).contains(&reached), "{reached} ms");
    let longest = micros(&record.response, 1.0) / 1e3;
    let expected = 499.0 * 5.1 + 3.0 + 5.1 - 1_999.0;
    assert!(
        (longest - expected).abs() < 30.0,
        "{longest} ms, {expected} ms expected"
    );
    assert!(micros(&record.service, 1.0) < 5_200.0);
}

#[test]
fn limit_counts_connections_made_for_calls() {
    let load = LoadPlan {
        reuse: ConnectionReuse::Never,
        ..load_with_limit(WhenFull::Shed)
    };
    let record = simulate(load, NetworkConditions::faultless(1), echo(5));
    assert_all_counted(&record);
    let shed = record.outcomes.get(Outcome::NotSent);
    assert_eq!(record.ok_calls() + shed, 2_000);
    // Making a connection prolongs each call.
    assert!(record.ok_calls() > 0 && shed > 666, "{shed}");
}

#[test]
fn unreached_limit_has_no_effect() {
    let mut high = load_with_limit(WhenFull::Shed);
    high.in_flight_limit = Some(InFlightLimit {
        calls: 7,
        when_full: WhenFull::Shed,
    });
    let record = simulate(high, NetworkConditions::faultless(1), echo(5));
    assert_eq!((record.ok_calls(), record.due), (2_000, 2_000));
    assert_eq!(time_at_limit_ms(&record), 0.0);
}

/// Bursts of ten calls every 100 ms, in two repetitions of one second.
#[test]
fn recorded_calls_leave_at_their_times() {
    let times: String = (0..100).map(|n| format!("0.{}\n", n / 10)).collect();
    let request = RecordingOptions {
        file: "times.txt".into(),
        format: None,
        time_column: None,
        speed: 1.0,
        window: None,
        filters: Vec::new(),
        sample: None,
        seed: 1,
        own_host: None,
    };
    let recording = Recording::read(&request, Box::new(times.as_bytes())).unwrap();
    let mut load = load(ArrivalModel::Open(ArrivalSpacing::Recorded), 0.0, 4);
    load.stages = vec![LoadStage::constant_rate(
        "replay",
        Duration::from_nanos(2 * recording.end_ns()),
        0.0,
    )];
    (load.recording, load.repeats) = (Some(recording), true);
    let record = simulate(load, NetworkConditions::faultless(1), echo(5));
    assert_all_counted(&record);
    assert_eq!((record.due, record.ok_calls()), (200, 200));
    assert!(micros(&record.lag, 1.0) < 1.0);
}
