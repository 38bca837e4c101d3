//! Tests of when calls start and end, and of what is recorded.
//!
//! This file is long because each way in which a call can end has a test of its own.

use super::*;

#[test]
fn open_loop_is_exact_without_faults() {
    let record = simulate(
        load(ArrivalModel::Open(ArrivalSpacing::Constant), 1000.0, 1),
        NetworkConditions::faultless(1),
        echo(5),
    );
    assert_all_counted(&record);
    assert_eq!((record.due, record.ok_calls()), (2000, 2000));
    // 5 ms of delay and 50 µs each way.
    for quantile in [0.01, 0.5, 0.999] {
        let response = micros(&record.response, quantile);
        assert!((5_100.0..5_150.0).contains(&response), "{response}");
    }
    assert!(micros(&record.lag, 1.0) < 1.0);
}

#[test]
fn driver_wakes_at_requested_time() {
    let load = load(ArrivalModel::Open(ArrivalSpacing::Constant), 1000.0, 10);
    let protocol = Ids {
        held_for: Duration::from_millis(3),
        ..Ids::default()
    };
    let network = SimulatedNetwork::new(echo(2), NetworkConditions::faultless(1));
    let (record, _) = run_worker(worker(load, network, 1, protocol), None);
    assert_all_counted(&record);
    assert_eq!((record.due, record.ok_calls()), (2_000, 2_000));
    let (least, most) = (micros(&record.service, 0.0), micros(&record.service, 1.0));
    assert!((5_000.0..5_100.0).contains(&least), "{least}");
    assert!((5_000.0..5_300.0).contains(&most), "{most}");
}

#[test]
fn stall_shows_only_in_response_time() {
    // Expected values: 1,000 calls a second, a freeze of 400 ms from second 5.5 on, and at most 8 calls in
    // flight. Calls that are due in the freeze wait for up to 400 ms; only the 8 in flight see it in their
    // service time.
    let freeze = Some((Time(5_500_000_000), Time(5_900_000_000)));
    let server = EchoServer {
        delay: Duration::from_millis(1),
        freeze,
        held: Vec::new(),
    };
    let mut load = load(ArrivalModel::Open(ArrivalSpacing::Constant), 1000.0, 1);
    load.deadline = None;
    let record = simulate(load, NetworkConditions::faultless(1), server);
    assert_all_counted(&record);
    let (response, service) = (micros(&record.response, 0.9), micros(&record.service, 0.9));
    // 2,000 calls: the slowest tenth are 200 of the 400 (and the few after) in the freeze.
    assert!(
        (190_000.0..260_000.0).contains(&response),
        "response p90 {response}"
    );
    assert!(service < 1_500.0, "service p90 {service}");
    // The delay is caused by the connection, not by the generator.
    assert!(micros(&record.lag, 0.99) > 300_000.0);
    assert!(micros(&record.pacing, 0.99) < 10.0);
}

#[test]
fn closed_loop_runs_exactly_requested_calls() {
    let mut load = load(
        ArrivalModel::Closed {
            clients: 20,
            think: Duration::ZERO,
        },
        0.0,
        4,
    );
    load.calls = Some(500);
    let record = simulate(load, NetworkConditions::faultless(1), echo(2));
    assert_all_counted(&record);
    assert_eq!((record.due, record.ok_calls()), (500, 500));
}

#[test]
fn closed_loop_numbers_calls_across_workers() {
    let clients = ArrivalModel::Closed {
        clients: 1,
        think: Duration::ZERO,
    };
    let mut load = load(clients, 0.0, 1);
    load.calls = Some(10);
    let protocol = Ids::default();
    let seen = Arc::clone(&protocol.numbers);
    let network = SimulatedNetwork::new(echo(1), NetworkConditions::faultless(1));
    // The odd numbers belong to the second worker.
    run_worker(worker(load, network, 2, protocol), None);
    assert_eq!(*seen.lock().unwrap(), [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]);
}

#[test]
fn call_limit_excludes_warmup() {
    let clients = ArrivalModel::Closed {
        clients: 2,
        think: Duration::ZERO,
    };
    let mut load = load(clients, 0.0, 1);
    let mut steady = load.stages[0].clone();
    steady.duration = None;
    load.stages[0].warmup = true;
    load.stages[0].duration = Some(Duration::from_secs(1));
    load.stages.push(steady);
    load.calls = Some(50);
    let network = SimulatedNetwork::new(echo(10), NetworkConditions::faultless(1));
    let mut control = new_control(None);
    let mut worker = worker(load, network, 1, Ids::default());
    worker.establish_connections(&mut control).unwrap();
    control.start = Some(Time(5_000_000_000));
    worker.run(Time(5_000_000_000), &mut control).unwrap();
    // Two at a time, 10.1 ms each.
    let warm = control.total.stage_mut(0).ok_calls();
    assert!((190..=200).contains(&warm), "{warm} in the warm-up");
    assert_eq!(control.total.stage_mut(1).ok_calls(), 50);
}

#[test]
fn think_time_limits_closed_loop_rate() {
    let load = load(
        ArrivalModel::Closed {
            clients: 10,
            think: Duration::from_millis(10),
        },
        0.0,
        2,
    );
    let record = simulate(load, NetworkConditions::faultless(1), echo(10));
    assert_all_counted(&record);
    // A cycle takes 10 ms of delay, 10 ms of think time and 0.1 ms of latency: 2 s / 20.1 ms × 10.
    assert!(
        (980..=1000).contains(&record.ok_calls()),
        "{}",
        record.ok_calls()
    );
}

#[test]
fn expired_calls_count_late_responses() {
    let record = simulate(
        load(ArrivalModel::Open(ArrivalSpacing::Constant), 20.0, 4),
        NetworkConditions::faultless(1),
        echo(700),
    );
    assert_all_counted(&record);
    assert_eq!(record.outcomes.get(Outcome::DeadlineExceeded), record.due);
    assert!(record.late > 0 && record.late <= record.due);
}

#[test]
fn expired_call_is_cancelled_without_traffic() {
    let mut load = load(ArrivalModel::Open(ArrivalSpacing::Constant), 1.0, 1);
    load.drain = Some(Duration::from_secs(2));
    let mut server = SilentServer::default();
    let record = simulate(load, NetworkConditions::faultless(1), &mut server);
    assert_all_counted(&record);
    assert_eq!(record.outcomes.get(Outcome::DeadlineExceeded), 2);
    // Due at 0 s and at 1 s of the load, which begins at 5 s.
    assert_eq!(server.cancelled.len(), 2, "{:?}", server.cancelled);
    for (due_ms, at) in [5_000, 6_000].into_iter().zip(server.cancelled) {
        let after = at.duration_since(Time(due_ms * MS)).as_millis();
        assert!((500..=510).contains(&after), "{after} ms");
    }
}

/// Returns a load of 200 calls per second on one connection, of which a server that answers eight at a time after
/// 100 ms completes 80 per second.
fn overloaded(deadline_ms: u64) -> LoadPlan {
    let mut load = load(ArrivalModel::Open(ArrivalSpacing::Constant), 200.0, 1);
    load.deadline = Some(Duration::from_millis(deadline_ms));
    load.drain = Some(Duration::from_millis(deadline_ms));
    load
}

#[test]
fn deadline_counts_from_due_time() {
    let record = simulate(overloaded(200), NetworkConditions::faultless(1), echo(100));
    assert_all_counted(&record);
    assert_eq!(record.due, 400);
    let slowest = record.response.histogram().unwrap().max();
    assert!(slowest < 201 * MS, "ok after {slowest} ns");
    let expired = record.outcomes.get(Outcome::DeadlineExceeded);
    assert_eq!(record.ok_calls() + expired, 400, "{record:?}");
    assert!(record.waited_for_stream > 150, "{record:?}");
    assert_eq!(record.waited_for_connection, 0);
    // Most of them were never sent, and never because of the generator.
    assert!(record.expired_unsent > 150, "{}", record.expired_unsent);
    assert!(record.expired_unsent <= expired && record.not_started == 0);
    assert_eq!(record.failed.len(), expired);
}

#[test]
fn delayed_call_receives_wait_time() {
    let mut load = overloaded(200);
    (load.deadline, load.drain) = (None, Some(Duration::from_secs(60)));
    for (delay_ms, waits) in [(100, true), (1, false)] {
        let protocol = Ids::default();
        let seen = Arc::clone(&protocol.waited);
        let network = SimulatedNetwork::new(echo(delay_ms), NetworkConditions::faultless(1));
        let (record, _) = run_worker(worker(load.clone(), network, 1, protocol), None);
        assert_eq!(record.ok_calls(), 400);
        let lag = record.lag.histogram().unwrap();
        let seen = seen.lock().unwrap();
        assert_eq!(seen.len() as u64, lag.count_between(MS, lag.max()));
        assert_eq!(seen.len() > 300, waits, "{}", seen.len());
        let longest = seen.iter().max().map_or(0, Duration::as_millis);
        // The last call is due after 2 s, and 392 calls are answered before it is sent.
        let expected = if waits { 2_800..3_000 } else { 0..1 };
        assert!(expected.contains(&longest), "{longest} ms");
    }
}

#[test]
fn intervals_report_queued_and_active_calls() {
    let mut load = overloaded(200);
    (load.deadline, load.drain) = (None, Some(Duration::from_secs(60)));
    let network = SimulatedNetwork::new(echo(100), NetworkConditions::faultless(1));
    let mut control = new_control(None);
    let mut worker = worker(load, network, 1, Ids::default());
    worker.establish_connections(&mut control).unwrap();
    control.start = Some(Time(5_000_000_000));
    worker.run(Time(5_000_000_000), &mut control).unwrap();
    // The backlog grows by 120 calls a second for two seconds.
    let most = control
        .under_way
        .iter()
        .map(|(_, reported)| *reported)
        .max();
    assert!(most > Some(200), "{:?}", control.under_way);
    for (under_way, reported) in control.under_way {
        assert_eq!(under_way, reported);
    }
}

#[test]
fn closed_loop_deadline_includes_stream_wait() {
    let clients = ArrivalModel::Closed {
        clients: 24,
        think: Duration::ZERO,
    };
    let mut load = load(clients, 0.0, 1);
    load.deadline = Some(Duration::from_millis(250));
    let record = simulate(load, NetworkConditions::faultless(1), echo(100));
    assert_all_counted(&record);
    // Eight at a time: a client of the third group waits for 200 ms and is answered after 300.
    let slowest = record.response.histogram().unwrap().max();
    assert!(slowest < 251 * MS, "ok after {slowest} ns");
    let expired = record.outcomes.get(Outcome::DeadlineExceeded);
    assert!(expired > 20 && record.ok_calls() >= 16, "{record:?}");
    // Waiting calls fail at the deadline, not when they could be sent.
    let latest = record.failed.histogram().unwrap().max();
    assert!(latest < 251 * MS, "given up after {latest} ns");
    assert!(record.lag.histogram().unwrap().max() > 90 * MS);
}

/// Fifty clients with one call each, and a server that answers ten calls a second and at most `answers` in total.
fn run_fifty_calls(answers: usize) -> (StageRecord, Duration) {
    let clients = ArrivalModel::Closed {
        clients: 50,
        think: Duration::ZERO,
    };
    let mut load = load(clients, 0.0, 50);
    load.stages[0].duration = None;
    load.calls = Some(50);
    (load.deadline, load.drain) = (None, None);
    load.stall_timeout = Some(Duration::from_millis(500));
    let server = QueueServer {
        service: Duration::from_millis(100),
        answers,
        held: Vec::new(),
        busy_until: Time::ZERO,
    };
    simulate_until(
        load,
        NetworkConditions::faultless(1),
        server,
        Vec::new(),
        None,
    )
}

#[test]
fn fixed_call_count_awaits_last_response() {
    let (record, lasted) = run_fifty_calls(50);
    assert_all_counted(&record);
    assert_eq!((record.due, record.ok_calls()), (50, 50), "{record:?}");
    // Ten times the stall timeout, which each answer restarts.
    assert!(lasted >= Duration::from_millis(4_900), "{lasted:?}");
}

#[test]
fn fixed_call_count_fails_without_responses() {
    let (record, lasted) = run_fifty_calls(20);
    assert_all_counted(&record);
    assert_eq!(record.ok_calls(), 20, "{record:?}");
    assert_eq!(record.outcomes.get(Outcome::DeadlineExceeded), 30);
    let bound = Duration::from_millis(2_600);
    assert!(lasted < bound, "{lasted:?}");
}

#[test]
fn late_connection_sends_no_expired_call() {
    let mut weather = NetworkConditions::faultless(1);
    weather.ignore_ppm = 500_000;
    let mut load = load(ArrivalModel::Open(ArrivalSpacing::Constant), 100.0, 1);
    load.reuse = ConnectionReuse::Never;
    load.deadline = Some(Duration::from_millis(300));
    let record = simulate(load, weather, echo(1));
    assert_all_counted(&record);
    let expired = record.outcomes.get(Outcome::DeadlineExceeded);
    assert!(expired > 50 && record.ok_calls() > 50, "{record:?}");
    assert_eq!(record.expired_unsent, expired);
    assert_eq!(record.outcomes.get(Outcome::ConnectTimeout), 0);
}

#[test]
fn generator_delay_fails_no_calls() {
    let mut load = load(ArrivalModel::Open(ArrivalSpacing::Constant), 1_000.0, 4);
    load.deadline = Some(Duration::from_millis(200));
    let pause = (Time(6_000_000_000), Duration::from_millis(500));
    let record = simulate_paused(load, NetworkConditions::faultless(1), echo(5), vec![pause]);
    assert_all_counted(&record);
    // Calls that were due in the last 200 ms of the pause found eight streams per connection.
    assert!(
        (150..=220).contains(&record.waited_for_stream),
        "{record:?}"
    );
    // Calls that were due in the first 300 of 500 ms.
    assert!((299..=302).contains(&record.not_started), "{record:?}");
    assert_eq!(record.expired_unsent, 0);
    assert!(record.cut_off.is_empty());
}

/// Calls in flight at an interrupt may take two more seconds, and waiting calls are abandoned.
#[test]
fn interrupt_lets_calls_in_flight_finish() {
    let mut load = load(ArrivalModel::Open(ArrivalSpacing::Constant), 20.0, 1);
    load.stages[0].duration = Some(Duration::from_secs(60));
    load.deadline = None;
    load.drain = Some(Duration::from_secs(30));
    let stopped = |server| {
        simulate_until(
            load.clone(),
            NetworkConditions::faultless(1),
            server,
            Vec::new(),
            Some(1),
        )
    };
    // Eight at a time, each for 1.5 s: those in flight at the interrupt, at 2 s, end by 3.5 s.
    let (record, lasted) = stopped(SlowServer(echo(1_500)));
    assert_all_counted(&record);
    assert_eq!(record.outcomes.get(Outcome::Interrupted), 0, "{record:?}");
    assert!(
        record.ok_calls() >= 16 && record.not_started > 10,
        "{record:?}"
    );
    assert_eq!(record.cut_off.len(), record.not_started);
    assert!(lasted < Duration::from_millis(3_600), "{lasted:?}");
    // Calls that take longer are cut off after the grace period.
    let (record, lasted) = stopped(SlowServer(echo(10_000)));
    assert_all_counted(&record);
    assert_eq!(record.outcomes.get(Outcome::Interrupted), 8, "{record:?}");
    assert_eq!(record.abandoned_calls(), record.due);
    assert!((3_990..4_300).contains(&lasted.as_millis()), "{lasted:?}");
}

/// The drain time only applies to calls in flight: without any the run ends.
#[test]
fn run_ends_with_last_call() {
    let mut load = load(ArrivalModel::Open(ArrivalSpacing::Constant), 100.0, 1);
    load.drain = Some(Duration::from_secs(30));
    let (record, lasted) = simulate_until(
        load.clone(),
        NetworkConditions::faultless(1),
        echo(20),
        Vec::new(),
        None,
    );
    assert_all_counted(&record);
    assert_eq!(record.ok_calls(), 200);
    assert!(lasted < Duration::from_millis(2_150), "{lasted:?}");
    // With calls that never end, the run waits for the drain time and then cuts them off.
    (load.deadline, load.drain) = (None, Some(Duration::from_secs(3)));
    let (record, lasted) = simulate_until(
        load,
        NetworkConditions::faultless(1),
        SlowServer(echo(60_000)),
        Vec::new(),
        None,
    );
    assert_all_counted(&record);
    assert_eq!(record.outcomes.get(Outcome::CutOff), 8, "{record:?}");
    assert_eq!(record.cut_off.len(), 200);
    assert!((4_990..5_200).contains(&lasted.as_millis()), "{lasted:?}");
}

#[test]
fn nothing_is_counted_before_load_starts() {
    let clients = ArrivalModel::Closed {
        clients: 1,
        think: Duration::ZERO,
    };
    // The failed connections and their replacement precede the load's start at 5 s.
    let record = simulate(
        load(clients, 0.0, 1),
        NetworkConditions::faultless(1),
        resetting(3),
    );
    assert_all_counted(&record);
    assert_eq!(record.connect_failures.get(Outcome::Reset), 3);
    // 10.1 ms a call.
    assert_eq!((record.ok_calls(), record.errors()), (199, 0), "{record:?}");
}

/// Returns the verdict on "p99.9 < 20ms" for the calls of `record`.
fn p99_9_below_20_ms(record: &StageRecord) -> ObjectiveVerdict {
    let objective = Objective {
        metric: Metric::Time(TimeMetric::Response, Statistic::Percentile(99.9)),
        stage: None,
        step: None,
        is_upper: true,
        limit: 20e6,
        text: "p99.9 < 20ms".to_owned(),
    };
    let measured = ObjectiveInputs {
        all: MeasuredCalls {
            record: record.clone(),
            ..MeasuredCalls::default()
        },
        ..ObjectiveInputs::default()
    };
    judge_objectives(&[objective], &measured, RunValidity::Sound)[0].verdict
}

#[test]
fn generator_pause_differs_from_target_stall() {
    let open = load(ArrivalModel::Open(ArrivalSpacing::Constant), 2_000.0, 8);
    let closed = load(
        ArrivalModel::Closed {
            clients: 20,
            think: Duration::ZERO,
        },
        0.0,
        8,
    );
    for (load, name) in [(open, "open"), (closed, "closed")] {
        let run = |server, pauses| {
            simulate_paused(
                load.clone(),
                NetworkConditions::faultless(1),
                server,
                pauses,
            )
        };
        let calm = run(echo(7), Vec::new());
        assert!(calm.delayed.is_empty(), "{name}: {:?}", calm.delayed);
        assert_eq!(p99_9_below_20_ms(&calm), ObjectiveVerdict::Met, "{name}");

        let pause = (Time(6_000_000_000), Duration::from_millis(80));
        let stopped = run(echo(7), vec![pause]);
        assert_all_counted(&stopped);
        assert!(micros(&stopped.response, 0.999) > 60_000.0, "{name}");
        assert_eq!(
            p99_9_below_20_ms(&stopped),
            ObjectiveVerdict::CannotBeJudged,
            "{name}: {stopped:?}"
        );
        // Calls in flight, and calls due within the pause or for its length after it.
        let delayed = stopped.delayed.len();
        assert!(delayed > 150, "{name}: {delayed}");
        let longest = stopped.delayed.histogram().unwrap().max();
        assert!(
            (80..=86).contains(&(longest / 1_000_000)),
            "{name} {longest}"
        );

        // A server that stalls for as long is judged, also if the generator pauses at another time, for less.
        let frozen = || EchoServer {
            freeze: Some((Time(5_500_000_000), Time(5_900_000_000))),
            ..echo(7)
        };
        assert_eq!(
            p99_9_below_20_ms(&run(frozen(), Vec::new())),
            ObjectiveVerdict::Missed
        );
        assert_eq!(
            p99_9_below_20_ms(&run(frozen(), vec![pause])),
            ObjectiveVerdict::Missed
        );
    }
}
