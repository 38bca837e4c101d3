//! Tests of calls that are grouped by ticks.

use super::*;

/// One call per millisecond and a tick of 7 ms: calls due at 1 to 7 ms are sent at 7, and so on. The last
/// five (1,995 to 1,999 ms) are sent at the load's end, which precedes the next tick.
#[test]
fn calls_within_tick_are_sent_together() {
    let mut load = load(ArrivalModel::Open(ArrivalSpacing::Constant), 1000.0, 1);
    load.tick = Duration::from_millis(7);
    let record = simulate(load, NetworkConditions::faultless(1), echo(1));
    assert_all_counted(&record);
    assert_eq!((record.ok_calls(), record.errors()), (2000, 0));
    let mut waits = [0_u64; 8];
    for bucket in record.pacing.histogram().unwrap().iter_recorded() {
        let waited = bucket.value_iterated_to() as f64 / 1e6;
        assert!(
            (waited - waited.round()).abs() < 0.05,
            "all leave when the tick is over: {waited} ms"
        );
        waits[waited.round() as usize] += bucket.count_at_value();
    }
    // There are 286 groups, sent at 0, 7, …, 1995; the last one lacks two calls.
    assert_eq!(waits, [286, 286, 286, 286, 286, 285, 285, 0]);
    // Only response times include the wait for the tick.
    assert!(micros(&record.service, 0.99) < 1_200.0);
    assert!((7_000.0..7_300.0).contains(&micros(&record.response, 0.99)));
}

/// Four calls a tick are answered 0.3, 0.6, 0.9 and 1.2 ms after they were sent, and their answers are read together at
/// the next tick, without a wake-up for each. Their times are those at which they arrived.
#[test]
fn answers_within_tick_are_read_together() {
    let mut load = load(ArrivalModel::Open(ArrivalSpacing::Constant), 1000.0, 8);
    load.tick = Duration::from_millis(4);
    let mut server = ReadGroupCounter {
        server: QueueServer {
            service: Duration::from_micros(300),
            answers: usize::MAX,
            held: Vec::new(),
            busy_until: Time::ZERO,
        },
        groups: 0,
        was_read: false,
    };
    let record = simulate(load, NetworkConditions::faultless(1), &mut server);
    assert_all_counted(&record);
    assert_eq!((record.ok_calls(), record.errors()), (2000, 0));
    // 500 ticks. In the first 100 ms and at the load's end, answers are read on arrival.
    assert!((500..750).contains(&server.groups), "{}", server.groups);
    for (quantile, expected) in [(0.2, 300.0), (0.45, 600.0), (0.7, 900.0), (0.99, 1_200.0)] {
        let service = micros(&record.service, quantile);
        assert!(
            (expected..expected + 150.0).contains(&service),
            "p{quantile}: {service} instead of {expected}"
        );
    }
}
