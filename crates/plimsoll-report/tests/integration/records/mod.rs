//! A synthetic search and ladder for tests.

#![allow(
    dead_code,
    reason = "a test binary uses what it needs of this, and no other part"
)]

use plimsoll_model::comparisons::ladder::batches::{BatchesRecord, RungDifference};
use plimsoll_model::comparisons::ladder::{
    ALPHA, LadderMetric, LadderRecord, Rung, SliceMemory, SliceResult, SliceThroughput,
};
use plimsoll_model::objective::{ObjectiveResult, ObjectiveVerdict as Became, RunVerdict};
use plimsoll_model::runs::run::header::LoopKind;
use plimsoll_model::runs::run::{CommonConditions, MachineFacts, SCHEMA_VERSION};
use plimsoll_model::search::{
    SearchGoal, SearchRecord, SearchStep, Trial, TrialVerdict, next_step,
};
use plimsoll_model::statistics::paired::PairedDifference;

fn conditions() -> Option<CommonConditions> {
    Some(CommonConditions {
        load_loop: Some(LoopKind::Open),
        arrivals: Some("constant".to_owned()),
        clients: None,
        machine: MachineFacts {
            cpu_model: Some("A processor".to_owned()),
            cores: Some(2),
            ..MachineFacts::default()
        },
        ..CommonConditions::default()
    })
}

/// Returns a search before its first trial.
pub(crate) fn begun_search() -> SearchRecord {
    SearchRecord {
        schema_version: SCHEMA_VERSION,
        name: "score".to_owned(),
        target: "grpc://127.0.0.1:1".to_owned(),
        tool_version: "0".to_owned(),
        started_at: "2026-01-01T00:00:00Z".parse().expect("a time"),
        conditions: conditions(),
        objectives: vec!["p99 < 10ms".to_owned()],
        implied_errors_share: Some(0.01),
        goal: SearchGoal {
            budget_s: 400.0,
            ..SearchGoal::default()
        },
        trials: Vec::new(),
        finding: None,
        interrupted: false,
    }
}

/// Returns a complete search of a target with a capacity of 1,987 calls a second.
pub(crate) fn search() -> SearchRecord {
    let mut record = begun_search();
    loop {
        match next_step(&record.goal, &record.trials) {
            SearchStep::Done(finding) => {
                record.finding = Some(*finding);
                return record;
            }
            SearchStep::Try {
                purpose,
                rate_per_s,
                length,
            } => record.trials.push(Trial {
                purpose,
                rate_per_s,
                length_s: length.as_secs_f64(),
                took_s: length.as_secs_f64() + 0.5,
                verdict: if rate_per_s <= 1_987.0 {
                    TrialVerdict::Met
                } else {
                    TrialVerdict::Missed {
                        objectives: vec!["p99 < 10ms".to_owned()],
                        errors: false,
                    }
                },
                achieved_per_s: Some(rate_per_s),
                p50_us: Some(2_000.0),
                p99_us: Some(3_000.0 / (1.0 - (rate_per_s / 2_500.0).min(0.99))),
                mean_us: Some(2_100.0),
                errors_share: Some(0.0),
                ..Trial::default()
            }),
        }
    }
}

/// Returns four rungs, of which the third adds nothing.
pub(crate) fn ladder() -> LadderRecord {
    let rung = |name: &str, added: f64, step: u32| Rung {
        name: name.to_owned(),
        slices: (0..12)
            .map(|round: u32| {
                let wave = f64::from(round * step % 12) * 1.5;
                SliceResult {
                    p50_us: Some(5_100.0 + added + wave),
                    p99_us: Some(5_600.0 + 2.0 * added + 9.0 * wave),
                    client_cpu_us_per_call: Some(9.0 + added / 40.0 + wave / 100.0),
                    server_cpu_us_per_call: Some(21.0 + added / 30.0 + wave / 100.0),
                    sidecar_cpu_us_per_call: (added > 300.0).then_some(70.0 + wave / 10.0),
                    memory: SliceMemory {
                        server_bytes_per_connection: Some(18_100.0 + 40.0 * added + wave),
                        ..SliceMemory::default()
                    },
                    valid: true,
                    run: format!("rung-{name}/slice-{round}"),
                    ..SliceResult::default()
                }
            })
            .collect(),
        ..Rung::default()
    };
    LadderRecord {
        schema_version: SCHEMA_VERSION,
        name: "score, ladder".to_owned(),
        tool_version: "0".to_owned(),
        started_at: "2026-01-01T00:00:00Z".parse().expect("a time"),
        conditions: conditions(),
        slice_s: 2.0,
        seed: 1,
        rungs: vec![
            rung("tls off", 0.0, 7),
            rung("tls server", 60.0, 7),
            rung("tls mutual", 60.2, 5),
            rung("tls mutual, via two sidecars", 310.0, 7),
        ],
        ..LadderRecord::default()
    }
}

/// Returns three rungs that were measured in batches.
pub(crate) fn ladder_in_batches() -> LadderRecord {
    let mut record = ladder();
    record.rungs.truncate(3);
    for rung in &mut record.rungs {
        rung.slices.truncate(1);
        let slice = &mut rung.slices[0];
        (slice.memory.server_bytes_per_connection, slice.valid) = (None, rung.name != "tls off");
    }
    record.slice_s = 20.0;
    let difference = |of, to, metric, shift, half: f64| RungDifference {
        of,
        to,
        metric,
        paired: PairedDifference {
            shift,
            low: shift - half,
            high: shift + 2.0 * half,
        },
    };
    record.batches = Some(BatchesRecord {
        kept_awake: false,
        calls: 20,
        warmup_calls: 2,
        rounds: 666,
        replicates: 1,
        required_replicates: 1,
        wanted_us: None,
        alpha: ALPHA,
        differences: vec![
            difference(1, 0, LadderMetric::P50, 9.6, 2.4),
            difference(1, 0, LadderMetric::P99, 130.0, 400.0),
            difference(1, 0, LadderMetric::ClientCpu, 1.5, 0.4),
            difference(1, 0, LadderMetric::ServerCpu, 2.0, 0.3),
            difference(2, 1, LadderMetric::P50, 0.4, 1.1),
            difference(2, 0, LadderMetric::P50, 1.0, 1.2),
            difference(2, 0, LadderMetric::ClientCpu, -0.1, 0.2),
            difference(2, 0, LadderMetric::ServerCpu, 0.1, 0.3),
        ],
    });
    record
}

/// Returns two configurations, one of which missed an objective.
pub(crate) fn sweep() -> LadderRecord {
    let volume = SliceThroughput {
        elapsed_s: 2.0,
        ok: 1_000,
        connections_full: 1_000,
        connections_resumed: 0,
        bytes_received: 1_000 * (10 << 20),
        client_cpu_us: Some(1_500_000.0),
        server_cpu_us: Some(1_600_000.0),
        suite: Some("TLS_CHACHA20_POLY1305_SHA256".to_owned()),
        group: Some("X25519".to_owned()),
        client_floor_us: Some(900.0),
        server_floor_us: None,
        turns: Vec::new(),
    };
    let rung = |connection: &str| {
        let resumed = connection == "resumed";
        let settings = [
            ("connection", connection),
            ("size", "10MiB"),
            ("suite", "TLS_CHACHA20_POLY1305_SHA256"),
        ];
        Rung {
            name: format!("connection {connection}, size 10MiB"),
            settings: settings
                .map(|(axis, value)| (axis.to_owned(), value.to_owned()))
                .into(),
            slices: vec![SliceResult {
                valid: !resumed,
                not_resumed: resumed,
                conclusion: resumed.then_some(RunVerdict::Fail),
                objectives: Vec::from_iter(resumed.then(|| ObjectiveResult {
                    objective: "resumed >= 100%".to_owned(),
                    verdict: Became::Missed,
                    measured: "0.0000% of 1000 handshakes".to_owned(),
                    instrument_us: None,
                })),
                run: "rung/slice".to_owned(),
                volume: Some(volume.clone()),
                ..SliceResult::default()
            }],
            ..Rung::default()
        }
    };
    LadderRecord {
        name: "links".to_owned(),
        rungs: vec![rung("new"), rung("resumed")],
        ..ladder()
    }
}
