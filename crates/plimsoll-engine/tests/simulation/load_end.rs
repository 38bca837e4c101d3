//! Tests of calls that are still waiting when the load ends.

use super::*;

/// Each connection carries one call, and making the next one takes longer than the time between two calls. Calls that
/// still wait when the load ends get a connection, too.
#[test]
fn waiting_calls_connect_after_load_end() {
    let mut load = load(ArrivalModel::Open(ArrivalSpacing::Constant), 1000.0, 1);
    load.calls_per_connection = Some(1);
    load.deadline = Some(Duration::from_secs(60));
    load.drain = Some(Duration::from_secs(60));
    let distant = NetworkConditions {
        latency_us: 1_000..=1_000,
        ..NetworkConditions::faultless(1)
    };
    let record = simulate(load, distant, echo(1));
    assert_all_counted(&record);
    assert_eq!((record.ok_calls(), record.errors()), (2000, 0));
    let waited_ms = micros(&record.lag, 0.99) / 1e3;
    assert!(waited_ms > 100.0, "calls did not wait: {waited_ms} ms");
}
