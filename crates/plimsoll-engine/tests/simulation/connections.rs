//! Tests of how connections are made, lost, replaced and closed.

use super::*;

/// Returns three addresses of one name.
fn three_addresses() -> [SocketAddr; 3] {
    [1, 2, 3].map(|last| ([10, 0, 0, last], 1).into())
}

fn with_three_addresses(seed: u64) -> NetworkConditions {
    NetworkConditions {
        addresses: three_addresses().to_vec(),
        ..NetworkConditions::faultless(seed)
    }
}

fn with_silent_addresses() -> NetworkConditions {
    NetworkConditions {
        silent_addresses: three_addresses().to_vec(),
        ..with_three_addresses(1)
    }
}

fn simulate_with_addresses(load: LoadPlan, weather: NetworkConditions) -> StageRecord {
    simulate(load, weather, echo(1))
}

fn counts(record: &StageRecord, address: usize) -> AddressCounts {
    let name = three_addresses()[address].to_string();
    record.addresses.get(&name).copied().unwrap_or_default()
}

#[test]
fn connections_and_calls_spread_over_addresses() {
    let load = load(ArrivalModel::Open(ArrivalSpacing::Constant), 600.0, 6);
    let record = simulate_with_addresses(load, with_three_addresses(1));
    assert_all_counted(&record);
    for address in 0..3 {
        let counts = counts(&record, address);
        assert_eq!((counts.connections, counts.calls), (2, 400), "{address}");
        assert_eq!((counts.errors, counts.connect_failures), (0, 0));
    }
}

#[test]
fn refusing_address_fails_no_calls() {
    let load = load(ArrivalModel::Open(ArrivalSpacing::Constant), 600.0, 6);
    let record = simulate_with_addresses(
        load,
        NetworkConditions {
            refusing_addresses: vec![three_addresses()[1]],
            ..with_three_addresses(1)
        },
    );
    assert_all_counted(&record);
    assert_eq!((record.ok_calls(), record.errors()), (1200, 0));
    assert_eq!(
        record.connect_failures.total(),
        0,
        "each connection came up"
    );
    // All six attempts began before the first refusal arrived.
    assert_eq!(counts(&record, 1).connect_failures, 2);
    assert_eq!(counts(&record, 1).connections, 0);
    assert_eq!(
        counts(&record, 0).connections + counts(&record, 2).connections,
        6
    );
}

#[test]
fn silent_address_is_raced_after_250_ms() {
    let load = load(ArrivalModel::Open(ArrivalSpacing::Constant), 600.0, 3);
    let record = simulate_with_addresses(
        load,
        NetworkConditions {
            silent_addresses: vec![three_addresses()[0]],
            ..with_three_addresses(1)
        },
    );
    assert_all_counted(&record);
    assert_eq!((record.ok_calls(), record.errors()), (1200, 0));
    let connect = record.measures.times(TimeMeasure::Connect);
    let connect = connect.histogram().unwrap();
    assert!(
        (250_000_000..251_000_000).contains(&connect.max()),
        "{}",
        connect.max()
    );
    assert!(connect.min() < 1_000_000);
    assert_eq!(counts(&record, 0).connect_failures, 1);
    assert_eq!(
        counts(&record, 1).connections,
        2,
        "the next in turn took its place"
    );
}

#[test]
fn cold_calls_rotate_over_reachable_addresses() {
    let mut load = load(ArrivalModel::Open(ArrivalSpacing::Constant), 300.0, 0);
    load.reuse = ConnectionReuse::Never;
    let record = simulate_with_addresses(load.clone(), with_three_addresses(1));
    assert_all_counted(&record);
    for address in 0..3 {
        let counts = counts(&record, address);
        assert_eq!((counts.connections, counts.calls), (200, 200));
    }
    let record = simulate_with_addresses(
        load,
        NetworkConditions {
            silent_addresses: vec![three_addresses()[2]],
            ..with_three_addresses(1)
        },
    );
    assert_all_counted(&record);
    assert_eq!((record.ok_calls(), record.errors()), (600, 0));
    let silent = counts(&record, 2);
    assert_eq!(silent.connections, 0);
    // Attempts that began within the first 250 ms, and at least one a second later.
    assert!((20..60).contains(&silent.connect_failures), "{silent:?}");
}

#[test]
fn connections_end_staggered_after_call_limit() {
    let clients = ArrivalModel::Closed {
        clients: 2,
        think: Duration::ZERO,
    };
    let mut load = load(clients, 0.0, 2);
    load.calls_per_connection = Some(100);
    load.calls = Some(1_000);
    load.stages[0].duration = None;
    let mut server = counting();
    let record = simulate(load, NetworkConditions::faultless(1), &mut server);
    assert_all_counted(&record);
    assert_eq!(record.ok_calls(), 1_000);
    let (first, rest) = server.calls.split_at(3);
    // The third connection replaced the first after half a lifetime.
    assert_eq!(first, [50, 100, 100]);
    let last_two = rest.len() - 2;
    assert!(
        rest[..last_two].iter().all(|calls| *calls == 100),
        "{rest:?}"
    );
}

#[test]
fn connections_end_staggered_after_time_limit() {
    let mut load = load(ArrivalModel::Open(ArrivalSpacing::Constant), 1_000.0, 4);
    load.stages[0].duration = Some(Duration::from_secs(4));
    load.connection_lifetime = Some(Duration::from_secs(1));
    let mut server = counting();
    let record = simulate(load, NetworkConditions::faultless(1), &mut server);
    assert_all_counted(&record);
    assert_eq!(record.errors(), 0, "{record:?}");
    // Four a second from the load's start at 5 s, never two at the same time.
    let start = Time(5_000_000_000);
    let during: Vec<Time> = (server.opened.iter().map(|(_, at)| *at))
        .filter(|at| *at > start + Duration::from_millis(500))
        .collect();
    assert!((12..=15).contains(&during.len()), "{during:?}");
    for two in during.windows(2) {
        let apart = two[1].duration_since(two[0]).as_millis();
        assert!((200..=300).contains(&apart), "{apart} ms: {during:?}");
    }
}

/// RFC 8767: stale addresses are used while a name cannot be resolved, but not by a newly started client,
/// which every call of a cold load is.
#[test]
fn unresolvable_name_keeps_its_addresses() {
    let mut load = load(ArrivalModel::Open(ArrivalSpacing::Constant), 100.0, 2);
    load.connection_lifetime = Some(Duration::from_millis(200));
    load.resolve_interval = Duration::from_millis(300);
    let weather = || NetworkConditions {
        lookups_fail_from: Time(6_000_000_000),
        ..with_three_addresses(5)
    };
    let record = simulate_with_addresses(load.clone(), weather());
    assert_all_counted(&record);
    assert_eq!((record.due, record.ok_calls()), (200, 200), "{record:?}");
    let made: u64 = (0..3).map(|at| counts(&record, at).connections).sum();
    assert!(made > 10, "{made}");
    load.reuse = ConnectionReuse::Never;
    load.connection_lifetime = None;
    let record = simulate_with_addresses(load, weather());
    assert_all_counted(&record);
    let unresolved = record.outcomes.get(Outcome::ResolveFailed);
    assert!(unresolved >= 90 && record.ok_calls() >= 90, "{record:?}");
}

#[test]
fn connect_to_silent_addresses_times_out() {
    let load = load(ArrivalModel::Open(ArrivalSpacing::Constant), 100.0, 1);
    let record = simulate_with_addresses(load, with_silent_addresses());
    assert_all_counted(&record);
    assert_eq!(record.ok_calls(), 0);
    assert_eq!(
        record.connect_failures.total(),
        record.connect_failures.get(Outcome::ConnectTimeout)
    );
    for address in 0..3 {
        assert!(counts(&record, address).connect_failures > 0, "{address}");
    }
}

#[test]
fn connection_per_call_records_phases() {
    let mut load = load(ArrivalModel::Open(ArrivalSpacing::Constant), 100.0, 1);
    load.reuse = ConnectionReuse::Never;
    let record = simulate(load, NetworkConditions::faultless(1), echo(1));
    assert_all_counted(&record);
    assert_eq!(record.ok_calls(), 200);
    let phase = |measure| micros(record.measures.times(measure), 0.5);
    // One round trip to connect; one and the server's delay for the greeting.
    assert!((100.0..110.0).contains(&phase(TimeMeasure::Connect)));
    assert!((1_100.0..1_110.0).contains(&phase(TimeMeasure::Ready)));
    assert!((2_200.0..2_310.0).contains(&micros(&record.response, 0.5)));
}

#[test]
fn refused_connections_fail_calls_and_retry() {
    let mut weather = NetworkConditions::faultless(1);
    weather.refuse_ppm = 1_000_000;
    let record = simulate(
        load(ArrivalModel::Open(ArrivalSpacing::Constant), 1000.0, 2),
        weather,
        echo(1),
    );
    assert_all_counted(&record);
    assert_eq!(record.outcomes.get(Outcome::ConnectRefused), 2000);
    assert!(record.connect_failures.get(Outcome::ConnectRefused) > 4);
}

/// Every outage fails calls at once: none of them waits for the next connection.
#[test]
fn repeated_refusals_fail_calls_immediately() {
    let mut refused = 0;
    for seed in 1..=10 {
        let mut weather = NetworkConditions::faultless(seed);
        (weather.reset_ppm, weather.refuse_ppm) = (5_000, 600_000);
        let load = load(ArrivalModel::Open(ArrivalSpacing::Constant), 1000.0, 1);
        let record = simulate(load, weather, echo(1));
        assert_all_counted(&record);
        refused += record.outcomes.get(Outcome::ConnectRefused);
        let slowest = record.response.histogram().unwrap().max();
        assert!(
            slowest < 10 * MS,
            "seed {seed}: a call waited {slowest} ns for a connection"
        );
    }
    assert!(
        refused > 2_000,
        "{refused} in outages, which are a quarter of the time"
    );
}

#[test]
fn closing_connection_is_replaced_once() {
    let open = load(ArrivalModel::Open(ArrivalSpacing::Constant), 100.0, 1);
    let clients = ArrivalModel::Closed {
        clients: 1,
        think: Duration::from_millis(10),
    };
    for load in [open, load(clients, 0.0, 1)] {
        let mut server = GoingAwayServer {
            opened: 0,
            first: None,
            then: echo(1),
        };
        let record = simulate(load, NetworkConditions::faultless(1), &mut server);
        assert_all_counted(&record);
        assert_eq!(server.opened, 2, "{record:?}");
        // Only the call that the first connection had accepted is reset.
        assert_eq!(record.outcomes.get(Outcome::Reset), 1, "{record:?}");
        assert_eq!(record.ok_calls(), record.due - 1);
        assert_eq!(record.connect_failures.total(), 0);
        assert_eq!(record.connections_lost, 0);
    }
}

#[test]
fn clients_without_reconnection_record_failed_calls() {
    let clients = ArrivalModel::Closed {
        clients: 6,
        think: Duration::ZERO,
    };
    let load = load(clients, 0.0, 2);
    let record = simulate_paused(
        load,
        NetworkConditions::faultless(1),
        DyingServer(echo(10)),
        Vec::new(),
    );
    assert_all_counted(&record);
    // Calls in flight fail, and again one per client for each failed connection: for a second, with pauses
    // that grow from 10 ms to a second, some eight times per client.
    let failed = record.outcomes.get(Outcome::Reset);
    assert!((6 * 5..6 * 16).contains(&failed), "{record:?}");
    assert!(record.connect_failures.get(Outcome::Reset) >= 10);
}

#[test]
fn connections_follow_connect_rate() {
    let mut load = load(ArrivalModel::Open(ArrivalSpacing::Constant), 10.0, 5);
    load.connect_rate = Some(20.0);
    let mut server = resetting(0);
    let network = SimulatedNetwork::new(&mut server, NetworkConditions::faultless(1));
    // This worker's share is ten connections a second.
    let established = worker(load.clone(), network, 2, Ids::default())
        .establish_connections(&mut new_control(None))
        .unwrap();
    assert_eq!((established.open, established.failed), (5, 0));
    assert_eq!(established.failure, None);
    for two in server.opened.windows(2) {
        let apart = two[1].duration_since(two[0]);
        assert_eq!(apart, Duration::from_millis(100));
    }
    let mut server = resetting(3);
    let network = SimulatedNetwork::new(&mut server, NetworkConditions::faultless(1));
    let established = worker(load, network, 2, Ids::default())
        .establish_connections(&mut new_control(None))
        .unwrap();
    assert_eq!((established.open, established.failed), (2, 3));
    assert_eq!(established.failure.unwrap().outcome, Outcome::Reset);
}

#[test]
fn failed_connections_retry_with_backoff() {
    let mut load = load(ArrivalModel::Open(ArrivalSpacing::Constant), 10.0, 1);
    load.stages[0].duration = Some(Duration::from_secs(10));
    let mut server = resetting(usize::MAX);
    let record = simulate(load, NetworkConditions::faultless(1), &mut server);
    assert_all_counted(&record);
    let pauses: Vec<f64> = server
        .opened
        .windows(2)
        .enumerate()
        .map(|(i, two)| {
            let nominal = (0.01 * 2_f64.powi(i as i32)).min(1.0);
            // Includes a round trip: a hundredth of the shortest pause.
            two[1].duration_since(two[0]).as_secs_f64() / nominal
        })
        .collect();
    // The first seven pauses take 1.3 s, followed by about 14 of one second until the load ends at 15 s.
    assert!((18..=26).contains(&pauses.len()), "{pauses:?}");
    let (least, most) = pauses
        .iter()
        .fold((f64::MAX, 0.0_f64), |(l, m), p| (l.min(*p), m.max(*p)));
    assert!(least > 0.75 && most < 1.28, "{pauses:?}");
    assert!(most - least > 0.2, "spread at random: {pauses:?}");
}

#[test]
fn failed_call_counts_as_connection_use() {
    let mut server = ClosingServer {
        how: ConnectionEnd::OnFirstCall,
        opened: 0,
    };
    let mut load = load(ArrivalModel::Open(ArrivalSpacing::Constant), 100.0, 0);
    load.reuse = ConnectionReuse::Never;
    let record = simulate(load, NetworkConditions::faultless(1), &mut server);
    assert_all_counted(&record);
    assert_eq!(
        (record.due, record.ok_calls(), server.opened),
        (200, 0, 200)
    );
    assert_eq!(record.connections_unused, 0);
}

#[test]
fn reads_pause_while_replies_are_unread() {
    const PINGS: usize = 4 << 20;
    for (reads_after, send_buffer) in [(None, 1 << 16), (Some(5), 1 << 16), (Some(5), 1 << 20)] {
        let mut server = PingFlood {
            pings: PINGS,
            reads_after: reads_after.map(Duration::from_secs),
            taken: 0,
            taken_unread: 0,
            reads: false,
            pongs: 0,
            rest: Vec::new(),
        };
        let mut load = load(ArrivalModel::Open(ArrivalSpacing::Constant), 10.0, 1);
        load.stages[0].duration = Some(Duration::from_secs(10));
        load.drain = Some(Duration::from_secs(20));
        let weather = NetworkConditions {
            send_buffer,
            ..NetworkConditions::faultless(1)
        };
        let record = simulate(load, weather, &mut server);
        assert_all_counted(&record);
        // Pongs are as long as pings, so the bytes read are in the socket, in the outbox, or from one read.
        let most = send_buffer + (64 << 10) + (128 << 10);
        assert!(
            server.taken_unread <= most,
            "{} bytes taken from a peer that read nothing; a socket holds {send_buffer}",
            server.taken_unread
        );
        match reads_after {
            None => assert_eq!(record.ok_calls(), 0),
            Some(_) => {
                assert_eq!(server.pongs, PINGS, "each ping is answered in the end");
                // Calls that are due after it began to read are answered at once.
                assert!(record.ok_calls() >= 45, "{record:?}");
            }
        }
    }
}

#[test]
fn unused_connections_reconnect_with_backoff() {
    let open = ArrivalModel::Open(ArrivalSpacing::Constant);
    let closed = ArrivalModel::Closed {
        clients: 1,
        think: Duration::from_millis(100),
    };
    for how in [
        ConnectionEnd::Immediately,
        ConnectionEnd::GoingAway,
        ConnectionEnd::AfterInvalidAnswer,
        ConnectionEnd::OnFirstCall,
    ] {
        for arrivals in [open, closed] {
            let mut server = ClosingServer { how, opened: 0 };
            let mut load = load(arrivals, 10.0, 1);
            load.stages[0].duration = Some(Duration::from_secs(10));
            let record = simulate(load, NetworkConditions::faultless(1), &mut server);
            assert_all_counted(&record);
            let what = format!("{how:?}, {arrivals:?}: {} connections", server.opened);
            // Pauses of 20 to 640 ms and then of one second: 6 and about 12 connections, in addition to those
            // before the load.
            assert!(server.opened <= 30, "{what}");
            // A connection that is greeted and closed within one iteration counts as not established.
            let useless = record.connections_unused + record.connect_failures.total();
            assert!(useless + 1 >= server.opened, "{what}");
            // Calls fail with their connections, and do not wait for the end of the run.
            assert!(
                record.due >= 8 && record.ok_calls() == 0,
                "{what}: {record:?}"
            );
            assert!(record.not_started <= 5, "{what}: {record:?}");
            // Only some protocols announce that a connection closes.
            assert_eq!(record.outcomes.get(Outcome::Goaway), 0, "{what}");
        }
    }
}

#[test]
fn used_connection_is_replaced_immediately() {
    let mut server = ClosingServer {
        how: ConnectionEnd::AfterFirstAnswer,
        opened: 0,
    };
    let load = load(ArrivalModel::Open(ArrivalSpacing::Constant), 100.0, 1);
    let record = simulate(load, NetworkConditions::faultless(1), &mut server);
    assert_all_counted(&record);
    assert_eq!((record.due, record.ok_calls()), (200, 200));
    assert_eq!(record.connections_unused, 0);
    assert!((200..=201).contains(&server.opened), "{}", server.opened);
}

#[test]
fn calls_still_connecting_are_cut_off() {
    let mut load = load(ArrivalModel::Open(ArrivalSpacing::Constant), 10.0, 1);
    load.reuse = ConnectionReuse::Never;
    (load.deadline, load.connect_timeout) = (None, Duration::from_secs(60));
    let record = simulate_with_addresses(load, with_silent_addresses());
    assert_all_counted(&record);
    assert_eq!(
        (record.due, record.cut_off_call_count()),
        (20, 20),
        "{record:?}"
    );
}

#[test]
fn call_without_connection_waits_for_one() {
    let server = ClosingServer {
        how: ConnectionEnd::AfterFirstAnswer,
        opened: 0,
    };
    // A call every 50 ms, while replacing a connection takes longer.
    let load = load(ArrivalModel::Open(ArrivalSpacing::Constant), 20.0, 1);
    let far = NetworkConditions {
        latency_us: 15_000..=15_000,
        ..NetworkConditions::faultless(1)
    };
    let record = simulate(load, far, server);
    assert_all_counted(&record);
    assert!(record.waited_for_connection >= 10, "{record:?}");
    assert_eq!(record.waited_for_stream, 0);
}
