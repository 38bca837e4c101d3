//! Synthetic runs for tests, written by the real writer from calls with known times.

#![allow(
    dead_code,
    reason = "a test binary uses what it needs of this, and no other part"
)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use plimsoll_model::metrics::measure::{Count, TimeMeasure};
use plimsoll_model::runs::run::header::{ConnectionSecurity, LoopKind, PlannedStage};
use plimsoll_model::runs::run::{
    IntervalRecord, MachineFacts, NegotiatedHandshakes, NegotiatedTls, ResourceUsage, Run,
    RunEnding, RunHeader, RunOrigin, RunWriter,
};
use plimsoll_model::{CallSample, ConnectPhases, Outcome, Recorder, Time};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// The parameters of a synthetic run.
pub(crate) struct Fixture {
    name: String,
    header: RunHeader,
    /// Measured seconds; the next: calls in each.
    seconds: u64,
    calls: u64,
    /// The generator's own lateness.
    pacing_ns: u64,
    slower: f64,
    failing: bool,
    in_flight: u64,
    server: bool,
    of: CallKind,
}

/// The kind of a synthetic run's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallKind {
    Calls,
    /// Streams of five messages.
    Streams,
    /// Queries of ten tokens, four in each session.
    Queries,
}

impl Fixture {
    pub(crate) fn steady(name: &str) -> Fixture {
        let stage = |name: &str, warmup, seconds: u64| PlannedStage {
            name: name.to_owned(),
            warmup,
            duration_us: Some(seconds * 1_000_000),
            rate_from_per_s: Some(1_000.0),
            rate_to_per_s: Some(1_000.0),
        };
        Fixture {
            name: name.to_owned(),
            header: RunHeader {
                target: Some("grpcs://localhost:50051".to_owned()),
                protocol: Some("grpc".to_owned()),
                call: Some("score.ScoreService/GetScore".to_owned()),
                security: Some(ConnectionSecurity::MutualTls),
                tls: Some(NegotiatedTls {
                    version: "TLSv1_3".to_owned(),
                    suite: "TLS_AES_256_GCM_SHA384".to_owned(),
                    group: Some("X25519".to_owned()),
                    certificate: Vec::new(),
                    renewed: 0,
                    handshakes: vec![NegotiatedHandshakes {
                        count: 1,
                        version: "TLSv1_3".to_owned(),
                        suite: "TLS_AES_256_GCM_SHA384".to_owned(),
                        group: Some("X25519".to_owned()),
                        signature: Some("mldsa65".to_owned()),
                        certificate: Some("ml-dsa-65".to_owned()),
                        chain: Some(2),
                        chain_bytes: Some(11_062),
                        ..NegotiatedHandshakes::default()
                    }],
                }),
                load_loop: Some(LoopKind::Open),
                arrivals: Some("constant".to_owned()),
                connections: Some(1),
                seed: Some(1),
                plan_hash: Some("fnv1a64:0".to_owned()),
                machine: Some(MachineFacts::default()),
                planned_stages: vec![stage("warm-up", true, 1), stage("steady", false, 4)],
                ..RunHeader::new(
                    RunOrigin::Measured,
                    "score, open loop",
                    "0.1.0",
                    "2026-01-02T03:04:05Z".parse().unwrap(),
                )
            },
            seconds: 4,
            calls: 1_000,
            pacing_ns: 12 * US,
            slower: 1.0,
            failing: false,
            in_flight: 0,
            server: true,
            of: CallKind::Calls,
        }
    }

    /// Sets the measured seconds.
    pub(crate) fn lasting(mut self, seconds: u64) -> Fixture {
        self.seconds = seconds;
        self.header.planned_stages[1].duration_us = Some(seconds * 1_000_000);
        self
    }

    pub(crate) fn streams(name: &str) -> Fixture {
        let mut f = Fixture::steady(name).at_rate(200);
        f.header.name = "tokens, streamed".to_owned();
        f.header.call = Some("llm.Generator/Generate".to_owned());
        Fixture {
            of: CallKind::Streams,
            ..f
        }
    }

    pub(crate) fn sessions(name: &str) -> Fixture {
        let mut f = Fixture::steady(name).at_rate(200);
        f.header.name = "chat, sessions".to_owned();
        f.header.target = Some("wss://localhost:8443".to_owned());
        f.header.protocol = Some("session".to_owned());
        f.header.call = Some("4 queries a session".to_owned());
        Fixture {
            of: CallKind::Queries,
            ..f
        }
    }

    pub(crate) fn cold(name: &str) -> Fixture {
        let mut f = Fixture::steady(name).at_rate(10);
        f.header.name = "score, new connection per call".to_owned();
        f.header.cold = true;
        f.header.connections = None;
        f
    }

    fn at_rate(mut self, calls: u64) -> Fixture {
        self.calls = calls;
        for stage in &mut self.header.planned_stages {
            stage.rate_from_per_s = Some(calls as f64);
            stage.rate_to_per_s = Some(calls as f64);
        }
        self
    }

    pub(crate) fn fleet(name: &str) -> Fixture {
        let mut f = Fixture::steady(name);
        f.header.name = "orders, closed loop".to_owned();
        f.header.call = Some("orders.OrderService/Submit".to_owned());
        f.header.security = Some(ConnectionSecurity::Plaintext);
        f.header.tls = None;
        f.header.load_loop = Some(LoopKind::Closed);
        f.header.arrivals = None;
        f.header.clients = Some(2_000);
        f.header.connections = Some(2_000);
        f.header.calls = Some(20_000);
        f.header.planned_stages = vec![PlannedStage {
            name: "calls".to_owned(),
            ..PlannedStage::default()
        }];
        f.seconds = 2;
        f.calls = 10_000;
        f
    }

    pub(crate) fn errors(name: &str) -> Fixture {
        Fixture {
            failing: true,
            ..Fixture::steady(name)
        }
    }

    /// Returns a run whose generator sent more than a tenth of the load's length late.
    pub(crate) fn invalid(name: &str) -> Fixture {
        Fixture {
            pacing_ns: 500 * MS,
            ..Fixture::steady(name)
        }
    }

    /// Returns a run whose generator was late by less than a call takes.
    pub(crate) fn late(name: &str) -> Fixture {
        Fixture {
            pacing_ns: 3 * MS,
            ..Fixture::steady(name)
        }
    }

    pub(crate) fn interrupted(name: &str) -> Fixture {
        Fixture {
            in_flight: 3,
            seconds: 2,
            ..Fixture::steady(name)
        }
    }

    pub(crate) fn tiny(name: &str) -> Fixture {
        let mut f = Fixture::steady(name);
        f.header.planned_stages.remove(0);
        f.header.planned_stages[0].duration_us = Some(1_000_000);
        f.header.planned_stages[0].rate_from_per_s = Some(5.0);
        f.header.planned_stages[0].rate_to_per_s = Some(5.0);
        Fixture {
            seconds: 1,
            calls: 5,
            server: false,
            ..f
        }
    }

    pub(crate) fn empty(name: &str) -> Fixture {
        Fixture {
            seconds: 0,
            ..Fixture::tiny(name)
        }
    }

    /// Multiplies service times.
    pub(crate) fn slower(mut self, by: f64) -> Fixture {
        self.slower = by;
        self
    }

    /// Returns the time of call `i` of a second: most take 5.1–5.6 ms, one in a hundred up to 20 ms more.
    fn service_ns(&self, i: u64) -> u64 {
        let spread = i * 7_919 % 1_000;
        let tail = if i % 100 == 99 { i % 7 * 3 * MS } else { 0 };
        ((5_100 * US + spread * 500 + tail) as f64 * self.slower) as u64
    }

    fn outcome(&self, i: u64) -> Outcome {
        match i {
            _ if !self.failing => Outcome::Ok,
            i if i % 50 == 3 => Outcome::DeadlineExceeded,
            i if i % 200 == 4 => Outcome::Unavailable,
            777 => Outcome::Reset,
            _ => Outcome::Ok,
        }
    }

    fn record_second(&self, recorder: &mut Recorder, stage: u8, index: u64) {
        let open = self.header.load_loop == Some(LoopKind::Open);
        for i in 0..self.calls {
            let due = Time(index * 1_000 * MS + i * 1_000 * MS / self.calls);
            let phases = ConnectPhases {
                resolve_ns: 30 * US,
                connect_ns: 90 * US + i % 10 * US,
                handshake_ns: 1_900 * US + i % 9 * 20 * US,
                ready_ns: 300 * US,
                resumed: false,
                retried: false,
                replaced: false,
            };
            let begun = due.plus_nanos(if open { self.pacing_ns + 8 * US } else { 0 });
            let sent = if self.header.cold {
                begun.plus_nanos(phases.total_ns())
            } else {
                begun
            };
            let outcome = self.outcome(i);
            let took = match outcome {
                Outcome::DeadlineExceeded => 1_000 * MS,
                _ => self.service_ns(i),
            };
            let sample = CallSample {
                number: index * self.calls + i,
                arrival: if open { due } else { sent },
                sent,
                first_byte: sent.plus_nanos(took - 80 * US),
                done: sent.plus_nanos(took),
                stage,
                outcome,
                bytes_sent: 27,
                bytes_received: 14,
            };
            recorder.stage_mut(stage).due += 1;
            if open {
                recorder.stage_mut(stage).pacing.record(self.pacing_ns);
            }
            if self.header.cold {
                recorder.record_cold_call(&sample, &phases, None);
            } else {
                recorder.record_call(&sample);
            }
            self.record_measures(recorder, stage, i, took);
            match outcome {
                Outcome::DeadlineExceeded if i == 3 => recorder.stage_mut(stage).late += 1,
                Outcome::Unavailable => recorder
                    .add_failure_detail(outcome, "upstream connect error\u{1b}[31m or disconnect"),
                _ => {}
            }
        }
        recorder.stage_mut(stage).due += self.in_flight;
    }

    /// Records additional measures of a call; every hundredth query loses a token, and gets another twice.
    fn record_measures(&self, recorder: &mut Recorder, stage: u8, i: u64, took: u64) {
        match self.of {
            CallKind::Calls => {}
            CallKind::Streams => {
                recorder.count_messages_sent(stage, 1);
                recorder.record_first_message(stage, took / 5);
                for message in 1..5 {
                    recorder.record_message_gap(stage, took / 5 + message * 10 * US);
                }
            }
            CallKind::Queries => {
                let astray = u64::from(i % 100 == 99);
                recorder.add_protocol_count(stage, Count::TokensReceived, 10 - astray);
                recorder.add_protocol_count(stage, Count::TokensMissing, astray);
                recorder.add_protocol_count(stage, Count::TokensDuplicated, astray);
                recorder.add_protocol_count(stage, Count::QueriesGood, 1 - astray);
                recorder.record_protocol_time(stage, TimeMeasure::FirstToken, took / 4);
                for token in 1..10 {
                    recorder.record_protocol_time(
                        stage,
                        TimeMeasure::TokenGap,
                        took / 12 + token * US,
                    );
                }
                recorder.record_protocol_time(stage, TimeMeasure::TokenMean, took / 12);
                if i.is_multiple_of(4) {
                    recorder.add_protocol_count(stage, Count::keyed("sessions_ok"), 1);
                    recorder.record_protocol_time(
                        stage,
                        TimeMeasure::keyed("session_create"),
                        700 * US + i * US,
                    );
                    recorder.record_protocol_time(
                        stage,
                        TimeMeasure::SocketOpen,
                        900 * US + i * US,
                    );
                }
            }
        }
    }

    /// Writes the run to `dir` with a warm-up of one second, where one is planned.
    pub(crate) fn write(&self, dir: &Path, ending: RunEnding) -> Run {
        const PLAN: &str = "name = \"score\"\n[load]\nrate = \"1000/s\"\nconnections = 1\n";
        const GOODPUT: &str = "[call.session]\nqueries = 4\ngoodput = { first_token = \"2ms\" }\n";
        let plan = match self.of {
            CallKind::Queries => format!("{PLAN}{GOODPUT}"),
            _ => PLAN.to_owned(),
        };
        let mut writer = RunWriter::create(dir, self.header.clone(), &plan)
            .and_then(|writer| writer.with_request_log(true))
            .unwrap();
        let warmup = u64::from(self.header.planned_stages[0].warmup);
        let last = self.header.planned_stages.len() as u8 - 1;
        let mut recorder = Recorder::new(2).with_request_log(true);
        let connections = self.header.connections.unwrap_or(0);
        for i in 0..u64::from(connections) {
            recorder.record_connection(
                0,
                &ConnectPhases {
                    resolve_ns: 0,
                    connect_ns: 95 * US + i % 50 * US,
                    handshake_ns: match self.header.security {
                        Some(ConnectionSecurity::Plaintext) => 0,
                        _ => 2_100 * US,
                    },
                    ready_ns: 250 * US,
                    resumed: false,
                    retried: false,
                    replaced: false,
                },
            );
        }
        if self.failing {
            recorder
                .stage_mut(0)
                .connect_failures
                .add(Outcome::ConnectRefused, 1);
        }
        for index in 0..self.seconds + warmup {
            let stage = if index < warmup { 0 } else { last };
            self.record_second(&mut recorder, stage, index);
            let taken = recorder.take_interval(None);
            let used = |per_call: u64| ResourceUsage {
                cpu_user_us: self.calls * per_call,
                cpu_system_us: Some(self.calls * per_call / 2),
                rss_bytes: 9_400_000,
                rss_bytes_before: Some(4_100_000),
                descriptors: 12 + u64::from(connections),
                threads: 2,
            };
            let interval = IntervalRecord {
                index,
                start_offset: Duration::from_secs(index),
                length: Duration::from_secs(1),
                stages: taken
                    .recorded_stages()
                    .map(|(i, s)| (i, s.clone()))
                    .collect(),
                // Each second has its own number of calls in flight.
                in_flight: self.in_flight * (index + 1),
                connections_open: u64::from(connections),
                busiest_worker_ratio: 0.12,
                client: Some(used(8)),
                server: self.server.then(|| used(40)),
                details: taken.details,
                ..IntervalRecord::default()
            };
            writer.add_interval(&interval, &taken.requests).unwrap();
        }
        writer.finish(ending).unwrap()
    }
}

/// Returns the fixture as a finished run whose directory is shown as `runs/NAME`.
pub(crate) fn finished(fixture: Fixture, ending: RunEnding) -> Run {
    let parent = tempfile::tempdir().unwrap();
    let written = fixture.write(&parent.path().join("run"), ending);
    let mut run = Run::load(&written.dir).unwrap();
    assert_eq!(run.summary, written.summary, "read back as written");
    run.dir = PathBuf::from("runs").join(&fixture.name);
    run
}

/// Returns the fixture as a finished run in `dir`.
pub(crate) fn finished_in(dir: &Path, fixture: Fixture, ending: RunEnding) -> Run {
    fixture.write(dir, ending)
}
