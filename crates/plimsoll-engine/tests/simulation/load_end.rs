//! Tests of calls that are still waiting when the load ends.

use super::*;

/// A server that closes each connection after one answer is slower than the load. Calls that still wait when the load
/// ends get a connection, too.
#[test]
fn waiting_calls_connect_after_load_end() {
    let mut load = load(ArrivalModel::Open(ArrivalSpacing::Constant), 1000.0, 1);
    load.deadline = Some(Duration::from_secs(60));
    load.drain = Some(Duration::from_secs(60));
    let server = ClosingServer {
        how: ConnectionEnd::AfterFirstAnswer,
        opened: 0,
    };
    let distant = NetworkConditions {
        latency_us: 1_000..=1_000,
        ..NetworkConditions::faultless(1)
    };
    let record = simulate(load, distant, server);
    assert_all_counted(&record);
    // A call that was sent as the server closed the connection fails; no call waits in vain.
    assert_eq!(record.outcomes.get(Outcome::DeadlineExceeded), 0);
    assert!(record.ok_calls() >= 1500, "{:?}", record.outcomes);
    let waited_ms = micros(&record.lag, 0.99) / 1e3;
    assert!(waited_ms > 100.0, "calls did not wait: {waited_ms} ms");
}
