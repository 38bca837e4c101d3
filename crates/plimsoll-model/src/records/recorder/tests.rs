use super::*;
use crate::Time;

fn sample(number: u64, outcome: Outcome) -> CallSample {
    CallSample {
        number,
        arrival: Time(1_000),
        sent: Time(3_000),
        first_byte: Time(8_000),
        done: Time(9_000),
        stage: 1,
        outcome,
        bytes_sent: 10,
        bytes_received: 20,
    }
}

#[test]
fn protocol_counts_and_messages_are_recorded() {
    let mut recorder = Recorder::new(1);
    recorder.count_messages_sent(0, 0);
    assert_eq!(recorder.take_interval(None).recorded_stages().count(), 0);
    recorder.add_protocol_count(0, Count::keyed("sessions_ok"), 2);
    recorder.add_protocol_count(0, Count::keyed("sessions_ok"), 3);
    recorder.count_messages_sent(0, 4);
    let interval = recorder.take_interval(None);
    let (_, record) = interval.recorded_stages().next().unwrap();
    assert_eq!(record.measures.counter(Count::keyed("sessions_ok")), 5);
    assert_eq!(record.messages.unwrap().sent, 4);
}

#[test]
fn response_times_exclude_failed_calls() {
    let mut recorder = Recorder::new(2).with_request_log(true);
    recorder.stage_mut(1).due += 3;
    recorder.record_call(&sample(0, Outcome::Ok));
    recorder.record_call(&sample(1, Outcome::Reset));
    recorder.stage_mut(1).not_started += 1;
    let interval = recorder.take_interval(None);
    let (stage, record) = interval.recorded_stages().next().unwrap();
    assert_eq!(stage, 1);
    assert_eq!((record.response.len(), record.failed.len()), (1, 1));
    assert_eq!(record.lag.len(), 2);
    assert_eq!((record.ok_calls(), record.errors()), (1, 1));
    assert_eq!(record.due, record.ended_calls() + record.not_started);
    assert_eq!(record.response.histogram().unwrap().max(), 8_003);
    assert_eq!(record.service.histogram().unwrap().max(), 6_003);
    assert_eq!(record.first_byte.histogram().unwrap().max(), 5_003);
    assert_eq!((record.bytes_sent, record.bytes_received), (20, 40));
    assert_eq!(interval.requests.len(), 2);
    assert!(
        recorder
            .take_interval(Some(RecordedInterval::default()))
            .is_empty()
    );
}

#[test]
fn single_time_call_is_recorded_normally() {
    let at_once = CallSample {
        arrival: Time(3_000),
        first_byte: Time(9_000),
        ..sample(0, Outcome::Ok)
    };
    let others = [
        sample(1, Outcome::Ok),
        CallSample {
            first_byte: Time(8_000),
            ..at_once
        },
        CallSample {
            outcome: Outcome::Reset,
            ..at_once
        },
    ];
    assert!(at_once.has_equal_times() && others.iter().all(|other| !other.has_equal_times()));
    let mut recorder = Recorder::new(2).with_request_log(true);
    let mut expected = RecordedInterval::default();
    for call in [at_once, at_once].iter().chain(&others) {
        recorder.record_call(call);
        expected.stage_mut(1).add_call(call);
    }
    let mut recorded = recorder.take_interval(None);
    assert_eq!(recorded.requests.len(), 5);
    let mut merged = RecordedInterval::default();
    merged.merge(&recorded);
    assert_eq!(merged.stages[1], expected.stages[1]);
    recorded.clear();
    assert!(recorded.is_empty());
    merged.merge(&recorded);
    assert_eq!(merged.stages[1], expected.stages[1]);
}

#[test]
fn stream_messages_merge_and_clear() {
    let mut recorder = Recorder::new(1);
    recorder.record_first_message(0, 5_000);
    recorder.record_message_gap(0, 700);
    recorder.record_message_gap(0, 900);
    recorder.count_messages_sent(0, 0);
    recorder.count_messages_sent(0, 4);
    let mut interval = recorder.take_interval(None);
    let mut total = RecordedInterval::default();
    total.merge(&interval);
    total.merge(&interval);
    let record = total.stages[0].as_deref().unwrap();
    let messages = record.messages.unwrap();
    assert_eq!((messages.sent, messages.received), (8, 6));
    let times = |measure| record.measures.times(measure);
    assert_eq!(times(TimeMeasure::FirstMessage).len(), 2);
    let between = times(TimeMeasure::InterMessage).histogram().unwrap();
    assert_eq!(between.max(), 900);
    interval.clear();
    assert!(interval.is_empty());
}

type RecordOnce = fn(&mut Recorder);

#[test]
fn counters_and_times_reach_their_stage() {
    let mut recorder = Recorder::new(2);
    // Each count differs.
    for n in 0..16 {
        let calls: [(u64, RecordOnce); 14] = [
            (2, |r| r.stage_mut(1).connections_first += 1),
            (3, |r| r.stage_mut(1).connections_lost += 1),
            (4, |r| r.stage_mut(1).connections_unused += 1),
            (5, |r| {
                r.stage_mut(1).connect_failures.add(Outcome::Reset, 1)
            }),
            (6, |r| r.stage_mut(1).due += 10),
            (7, |r| r.stage_mut(1).not_started += 10),
            (8, |r| r.record_cut_off_call(1, 5)),
            (9, |r| r.stage_mut(1).expired_unsent += 1),
            (10, |r| r.stage_mut(1).waited_for_stream += 1),
            (11, |r| r.stage_mut(1).waited_for_connection += 1),
            (12, |r| r.stage_mut(1).late += 1),
            (13, |r| r.stage_mut(1).pacing.record(5)),
            (14, |r| r.record_pause(1, 5, 2)),
            (15, |r| r.stage_mut(1).connections_idle_closed += 1),
        ];
        for (most, count) in calls {
            if n < most {
                count(&mut recorder);
            }
        }
    }
    let mut total = RecordedInterval::default();
    let mut taken = recorder.take_interval(None);
    total.merge(&taken);
    total.merge(&taken);
    assert!(total.stages[0].is_none());
    let record = total.stages[1].as_deref().unwrap();
    assert_eq!(record.connections_first, 2 * 2);
    assert_eq!(record.connections_lost, 2 * 3);
    assert_eq!(record.connections_unused, 2 * 4);
    assert_eq!(record.connections_idle_closed, 2 * 15);
    assert_eq!(record.connect_failures.get(Outcome::Reset), 2 * 5);
    assert_eq!(record.due, 2 * 60);
    assert_eq!(record.not_started, 2 * (70 + 8));
    assert_eq!(record.cut_off.len(), 2 * 8);
    assert_eq!(record.expired_unsent, 2 * 9);
    assert_eq!(record.waited_for_stream, 2 * 10);
    assert_eq!(record.waited_for_connection, 2 * 11);
    assert_eq!(record.late, 2 * 12);
    assert_eq!(record.pacing.len(), 2 * 13);
    assert_eq!(record.delayed.len(), 2 * 28);
    taken.clear();
    assert!(taken.is_empty());
}

#[test]
fn connection_setup_is_excluded_from_lag() {
    let phases = ConnectPhases {
        resolve_ns: 0,
        connect_ns: 500,
        handshake_ns: 1_000,
        ready_ns: 300,
        resumed: true,
        retried: true,
        replaced: true,
    };
    let mut recorder = Recorder::new(1);
    recorder.record_cold_call(&sample(0, Outcome::Ok), &phases, None);
    recorder.record_cold_call(
        &sample(1, Outcome::ConnectRefused),
        &ConnectPhases::default(),
        None,
    );
    let interval = recorder.take_interval(None);
    let record = interval.stages[1].as_deref().unwrap();
    assert_eq!(record.lag.histogram().unwrap().min(), 200);
    assert_eq!(
        (record.connections_resumed, record.connections_full),
        (1, 0)
    );
    assert_eq!(record.connections_retried, 1);
    assert_eq!(record.certificates_replaced, 1);
    let times = |measure| record.measures.times(measure).histogram();
    assert!(times(TimeMeasure::Resolve).is_none());
    assert_eq!(times(TimeMeasure::Connection).unwrap().max(), 1_800);
    assert_eq!(times(TimeMeasure::ColdTotal).unwrap().max(), 7_803);
}

#[test]
fn calls_and_connections_counted_per_address() {
    let mut recorder = Recorder::new(2);
    let (first, second) = (recorder.address_number("a"), recorder.address_number("b"));
    assert_eq!(recorder.address_number("a"), first);
    recorder.count_connection_to_address(second, 0);
    recorder.count_connect_failure_to_address(first, 0);
    recorder.count_call_at_address(second, 1, Outcome::Ok);
    recorder.count_call_at_address(second, 1, Outcome::CutOff);
    recorder.count_call_at_address(second, 1, Outcome::Reset);
    recorder.count_call_at_address(u32::MAX, 1, Outcome::Ok);
    let mut other = Recorder::new(2);
    let same = other.address_number("b");
    other.count_call_at_address(same, 1, Outcome::Ok);
    let mut total = RecordedInterval::default();
    let mut taken = recorder.take_interval(None);
    for interval in [&taken, &other.take_interval(None)] {
        total.merge(interval);
    }
    let counts = |stage: usize, address| total.stages[stage].as_deref().unwrap().addresses[address];
    assert_eq!((counts(1, "b").calls, counts(1, "b").errors), (4, 1));
    assert_eq!(
        (counts(0, "b").connections, counts(0, "a").connect_failures),
        (1, 1)
    );
    // Address numbers stay valid for the whole run, even if an interval's memory is reused.
    taken.clear();
    assert!(taken.is_empty());
    let third = recorder.address_number("c");
    recorder.take_interval(Some(taken));
    recorder.count_call_at_address(third, 1, Outcome::Ok);
    let mut total = RecordedInterval::default();
    total.merge(&recorder.take_interval(None));
    assert_eq!(total.stages[1].as_deref().unwrap().addresses["c"].calls, 1);
}

#[test]
fn a_cleared_interval_is_reused() {
    let mut recorder = Recorder::new(2).with_request_log(true);
    recorder.record_call(&sample(0, Outcome::Ok));
    recorder.add_failure_detail(Outcome::Reset, "peer");
    let mut first = recorder.take_interval(None);
    let mut total = RecordedInterval::default();
    total.merge(&first);
    first.clear();
    assert!(first.is_empty());
    recorder.record_call(&sample(1, Outcome::Ok));
    let second = recorder.take_interval(Some(first));
    recorder.add_failure_detail(Outcome::Reset, "peer");
    total.merge(&second);
    assert_eq!(total.stages[1].as_ref().unwrap().response.len(), 2);
    let (code, text) = (Outcome::Reset, "peer".to_owned());
    assert_eq!(total.details, [FailureDetail { code, text }]);
    recorder.record_call(&sample(2, Outcome::Ok));
    let third = recorder.take_interval(None);
    assert!(third.details.is_empty(), "each text leaves the worker once");
    assert_eq!(third.stages[1].as_ref().unwrap().response.len(), 1);
}

#[test]
fn slowest_sent_calls_keep_trace_ids() {
    let (ids, start) = (TraceIds::new(7, 8), Time(1_000));
    let mut recorder = Recorder::new(2);
    let call = |number: u64, outcome| CallSample {
        arrival: Time(start.0 + 100),
        sent: Time(start.0 + 150),
        done: Time(start.0 + 200 + number),
        stage: 1,
        ..sample(number, outcome)
    };
    let carried = |number| {
        Some(RequestContext {
            connection: Some(3),
            // It is the number of a call, too: of 500 and 600.
            shared_trace_number: Some(number / 100 * 100),
            step: None,
        })
    };
    let record = |recorder: &mut Recorder| {
        for number in 0..20 {
            let outcome = match number {
                19 => Outcome::DeadlineExceeded,
                _ => Outcome::Ok,
            };
            recorder.record_sent_call(&call(number, outcome), carried(number));
        }
        recorder.record_call(&call(1_000_000, Outcome::DeadlineExceeded));
        recorder.record_call_with_measures(&call(500, Outcome::Ok), &[], &[], carried(500));
        let phases = ConnectPhases::default();
        recorder.record_cold_call(&call(600, Outcome::Ok), &phases, carried(600));
        recorder.record_cold_call(&call(700, Outcome::ConnectRefused), &phases, None);
        recorder.take_interval(None)
    };
    let kept = |interval: &RecordedInterval| interval.stages[1].as_ref().unwrap().slowest.clone();
    assert!(kept(&record(&mut recorder)).calls().is_empty());
    recorder.enable_tracing(CallTracing {
        ids,
        worker: 4,
        start,
        unix_zero_ns: 5_000_000,
        sampler: None,
    });
    let interval = record(&mut recorder);
    assert!(interval.requests.is_empty());
    let kept = kept(&interval);
    let numbers = [600, 500, 19, 18, 17, 16, 15, 14, 13, 12];
    let expected = numbers.map(|number| TracedCall {
        response_ns: 100 + number,
        service_ns: 50 + number,
        due_ns: 100,
        outcome: match number {
            19 => Outcome::DeadlineExceeded,
            _ => Outcome::Ok,
        },
        worker: 4,
        connection: Some(3),
        trace_id: ids.trace_id(number / 100 * 100),
        span: Some(SpanFacts {
            number,
            span_id: ids.span_id(number / 100 * 100).child_id(number),
            parent_span_id: Some(ids.span_id(number / 100 * 100)),
            due_unix_ns: 5_001_100,
            first_byte_ns: sample(number, Outcome::Ok)
                .first_byte
                .since(Time(start.0 + 150)),
            bytes_sent: sample(number, Outcome::Ok).bytes_sent,
            bytes_received: sample(number, Outcome::Ok).bytes_received,
            step: None,
            phases: (number == 600).then(ConnectPhases::default),
        }),
    });
    assert_eq!(kept.calls(), expected);
}

#[test]
fn failure_details_hide_secrets_that_answers_repeat() {
    redaction::remember_secret("Bearer Kw5-recorded");
    let mut recorder = Recorder::new(1);
    for _ in 0..2 {
        recorder.add_failure_detail(Outcome::Reset, "no Kw5-recorded");
    }
    recorder.add_failure_detail(Outcome::Reset, "GET http://me:pw@a/ failed");
    let details = recorder.take_interval(None).details;
    let texts: Vec<&str> = details.iter().map(|detail| detail.text.as_str()).collect();
    assert_eq!(texts, ["no ************", "GET http://*****@a/ failed"]);
}
