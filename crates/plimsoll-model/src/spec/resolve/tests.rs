//!
//! This file is long because plans of every kind are resolved here.
use std::collections::BTreeMap;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::super::{StepSpec, read, set_spans};
use super::*;
use crate::plan::{
    ArrivalSpacing, ChainCheck, KeyExchangeGroup, LoadStage, Metric, RecordLayer, ServerTrust,
    Statistic, Target, TimeMetric, TlsPlan, TlsSuite, TlsVersion, WatchedProcess,
};
use crate::schedule::Schedule;

struct FakeContext;

impl ResolveContext for FakeContext {
    fn env_variable(&self, name: &str) -> Option<String> {
        (name == "PLIMSOLL_METADATA_AUTHORIZATION").then(|| "Bearer hush".into())
    }
    fn read_bytes(&self, _: &Path) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::NotFound.into())
    }
    fn read(&self, _: &Path) -> io::Result<String> {
        Err(io::ErrorKind::NotFound.into())
    }
}

const CALL: &str = "[call.grpc]\nmethod = \"score.ScoreService/GetScore\"\n";

fn plan(text: &str) -> Plan {
    let spec = read(text).expect("readable");
    resolve(&spec, &FakeContext).unwrap_or_else(|problems| panic!("{problems:?}"))
}

fn wrong(text: &str) -> Vec<String> {
    let spec = read(text).expect("readable");
    let mut problems = resolve(&spec, &FakeContext).expect_err("a wrong plan");
    set_spans(text, &mut problems);
    problems.iter().map(ToString::to_string).collect()
}

fn wrong_load(load: &str) -> Vec<String> {
    wrong(&format!("target = \"grpc://a:1\"\n{CALL}[load]\n{load}\n"))
}

fn load(load: &str) -> LoadPlan {
    plan(&format!("target = \"grpc://a:1\"\n{CALL}[load]\n{load}\n")).load
}

#[test]
fn defaults_match_documentation() {
    let plan = plan(&format!(
        "target = \"grpcs://localhost:50051\"\n{CALL}[load]\nrate = \"1000/s\"\nduration = \"30s\"\n"
    ));
    assert_eq!(plan.name, "GetScore, open loop");
    let target = Target {
        url: "grpcs://localhost:50051".into(),
        host: "localhost".into(),
        port: 50051,
        addresses: vec![],
        socket: None,
        proxy: None,
    };
    assert_eq!(plan.target, target);
    assert_eq!(
        plan.tls,
        Some(TlsPlan {
            trust: ServerTrust::System,
            crl: None,
            identity: None,
            server_name: None,
            suites: TlsSuite::ALL.to_vec(),
            groups: KeyExchangeGroup::DEFAULT_GROUPS.to_vec(),
            resume: false,
            early_data: false,
            full_share: None,
            versions: TlsVersion::ALL.to_vec(),
            compress_certificates: false,
            key_log: None,
            record_layer: RecordLayer::Own,
            chain_check: ChainCheck::Each,
        })
    );
    assert_eq!(
        plan.load,
        LoadPlan {
            arrivals: ArrivalModel::Open(ArrivalSpacing::Constant),
            stages: vec![stage(
                "steady",
                false,
                Some(Duration::from_secs(30)),
                1000.0,
                1000.0
            )],
            connections: 1,
            reuse: ConnectionReuse::Always,
            calls: None,
            deadline: Some(Duration::from_secs(10)),
            stall_timeout: None,
            connect_timeout: Duration::from_secs(10),
            connect_rate: None,
            connection_lifetime: None,
            calls_per_connection: None,
            resolve_interval: Duration::from_secs(30),
            retry: true,
            drain: Some(Duration::from_secs(10)),
            processes: None,
            workers: None,
            precision: None,
            spin: Duration::from_micros(50),
            tick: Duration::ZERO,
            read_buffer: 128 << 10,
            source_addresses: vec![],
            batches: None,
            count_bytes: false,
            pin_last_core: false,
            ..LoadPlan::default()
        }
    );
    assert_eq!(
        (plan.seed, plan.keep_requests, plan.watch),
        (1, false, WatchedProcess::TargetPort)
    );
}

fn stage(name: &str, warmup: bool, duration: Option<Duration>, from: f64, to: f64) -> LoadStage {
    LoadStage {
        name: name.into(),
        warmup,
        duration,
        rate_from: from,
        rate_to: to,
    }
}

#[test]
fn every_load_kind_resolves() {
    let ramp = load(
        "rate = { from = \"0/s\", to = \"100/s\", over = \"10s\" }\nduration = \"15s\"\nwarmup = \"2s\"",
    );
    assert_eq!(
        ramp.stages,
        [
            stage("warmup", true, Some(Duration::from_secs(2)), 100.0, 100.0),
            stage("ramp", false, Some(Duration::from_secs(10)), 0.0, 100.0),
            stage("hold", false, Some(Duration::from_secs(5)), 100.0, 100.0),
        ]
    );
    let steps = load(
        "steps = [{ rate = \"60/m\", for = \"10s\" }, { from = \"1/s\", to = \"9/s\", for = \"1m\" }]\narrivals = \"poisson\"",
    );
    assert_eq!(
        steps.stages,
        [
            stage("step 1", false, Some(Duration::from_secs(10)), 1.0, 1.0),
            stage("step 2", false, Some(Duration::from_secs(60)), 1.0, 9.0),
        ]
    );
    assert_eq!(steps.arrivals, ArrivalModel::Open(ArrivalSpacing::Poisson));
    let fleet = load(
        "clients = 200\ncalls = 5000\nthink = \"5ms\"\ndeadline = \"none\"\nconnections = 200",
    );
    assert_eq!(
        fleet.arrivals,
        ArrivalModel::Closed {
            clients: 200,
            think: Duration::from_millis(5)
        }
    );
    assert_eq!(fleet.stages, [stage("clients", false, None, 0.0, 0.0)]);
    assert_eq!(
        (fleet.deadline, fleet.drain),
        (None, Some(Duration::from_secs(10)))
    );
    let cold = load("rate = \"4/s\"\ncalls = 20\nreuse = \"never\"\ndeadline = \"2s\"");
    assert_eq!(cold.stages[0].duration, Some(Duration::from_secs(5)));
    assert_eq!(
        (cold.reuse, cold.drain),
        (ConnectionReuse::Never, Some(Duration::from_secs(2)))
    );
    // A call may take its full deadline.
    let slow = load("rate = \"4/s\"\ncalls = 20\ndeadline = \"90s\"");
    assert_eq!(slow.drain, Some(Duration::from_secs(90)));
    let sources =
        load("rate = \"1/s\"\ncalls = 1\nsource_addresses = [\"127.0.0.2-127.0.0.4\", \"::1\"]");
    assert_eq!(
        sources
            .source_addresses
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>(),
        ["127.0.0.2", "127.0.0.3", "127.0.0.4", "::1"]
    );
}

#[test]
fn call_limit_ends_open_loop_exactly() {
    for arrivals in ["constant", "poisson"] {
        for (rate, calls) in [("3/s", 7), ("1000/s", 1234), ("7/m", 1), ("0.3/s", 30)] {
            let load = load(&format!(
                "rate = \"{rate}\"\ncalls = {calls}\narrivals = \"{arrivals}\""
            ));
            assert_eq!(
                Schedule::new(&load, 9).share(0, 1).count(),
                calls,
                "{rate} {calls} {arrivals}"
            );
        }
    }
}

#[test]
fn contradictory_load_settings_name_their_keys() {
    for (typed, expected) in [
        (
            "rate = \"0/s\"\nduration = \"1s\"",
            "`load.rate`: a rate of 0 sends nothing",
        ),
        ("duration = \"1s\"", "`load`: neither a rate nor clients"),
        (
            "rate = \"1/s\"\nclients = 2\nduration = \"1s\"",
            "`load.clients`: can't be combined with load.rate",
        ),
        ("rate = \"1/s\"", "`load.duration`: missing"),
        ("clients = 2", "`load.duration`: missing"),
        (
            "rate = \"1/s\"\nduration = \"0s\"",
            "`load.duration`: 0 measures nothing",
        ),
        (
            "clients = 0\nduration = \"1s\"",
            "`load.clients`: 0 clients",
        ),
        (
            "clients = 1\nduration = \"1s\"\nconnections = 0",
            "`load.connections`: 0 connections",
        ),
        ("clients = 1\ncalls = 0", "`load.calls`: 0 calls"),
        (
            "clients = 1\ncalls = 1\narrivals = \"poisson\"",
            "`load.arrivals`: only for an open loop",
        ),
        (
            "rate = \"1/s\"\ncalls = 1\nthink = \"1s\"",
            "`load.think`: a pause",
        ),
        (
            "rate = \"1/s\"\ncalls = 1\narrivals = \"posson\"",
            "`load.arrivals`: `posson` is unknown",
        ),
        (
            "rate = \"1/s\"\ncalls = 1\nreuse = \"sometimes\"",
            "`load.reuse`: `sometimes` is unknown",
        ),
        (
            "rate = \"1/s\"\ncalls = 1\nreuse = \"never\"\nconnections = 3",
            "`load.connections`: not used with reuse",
        ),
        (
            "rate = \"1/s\"\ncalls = 1\ndeadline = \"0s\"",
            "`load.deadline`: a deadline of 0",
        ),
        (
            "rate = \"1/s\"\ncalls = 1\nconnect_timeout = \"0s\"",
            "`load.connect_timeout`: 0 fails",
        ),
        (
            "rate = \"1/s\"\ncalls = 1\nconnect_rate = \"0/s\"",
            "`load.connect_rate`: a rate of 0",
        ),
        (
            "rate = \"1/s\"\ncalls = 1\ntick = \"1s\"",
            "`load.tick`: out of range",
        ),
        (
            "clients = 1\ncalls = 1\ntick = \"1ms\"",
            "`load.tick`: for calls of an open loop",
        ),
        (
            "rate = \"1/s\"\ncalls = 1\nspin = \"1s\"",
            "`load.spin`: longer than 100ms",
        ),
        (
            "rate = \"1/s\"\ncalls = 1\nconnections = 2\nworkers = 3",
            "`load.workers`: 3 workers, but connections for only 2",
        ),
        (
            "rate = \"1/s\"\ncalls = 1\nworkers = 0",
            "`load.workers`: 0 workers",
        ),
        (
            "rate = \"1/s\"\ncalls = 1\nsource_addresses = [\"x\"]",
            "`load.source_addresses.0`: `x` is not an IP address",
        ),
        (
            "rate = { from = \"1/s\", to = \"2/s\", over = \"9s\" }\nduration = \"5s\"",
            "`load.duration`: 5s is shorter than the ramp (9s)",
        ),
        (
            "rate = { from = \"0/s\", to = \"0/s\", over = \"9s\" }",
            "`load.rate`: a ramp from 0 to 0",
        ),
        ("steps = []", "`load.steps`: no step"),
        (
            "steps = [{ rate = \"1/s\" }]",
            "`load.steps.0`: a step says `for` how long",
        ),
        (
            "steps = [{ rate = \"1/s\", from = \"1/s\", for = \"1s\" }]",
            "`load.steps.0`: a step has either",
        ),
        (
            "steps = [{ rate = \"0/s\", for = \"1s\" }]",
            "`load.steps`: a rate of 0 in every step",
        ),
    ] {
        let problems = wrong_load(typed);
        assert_eq!(problems.len(), 1, "{typed}: {problems:?}");
        assert!(problems[0].starts_with(expected), "{typed}: {problems:?}");
    }
}

#[test]
fn all_problems_have_spans() {
    let text = "target = \"grpc://a\"\n[tls]\ncert = \"c\"\ngroups = [\"X25518\"]\n[call.grpc]\n[load]\nrate = \"0/s\"\n[objective]\n\"p99\" = \"10ms\"\n[watch]\npid = 1\noff = true\n";
    let spec = read(text).expect("readable");
    let mut problems = resolve(&spec, &FakeContext).expect_err("a wrong plan");
    set_spans(text, &mut problems);
    let printed: Vec<(String, &str)> = problems
        .iter()
        .map(|p| (p.key.clone(), p.span.clone().map_or("", |s| &text[s])))
        .collect();
    assert_eq!(
        printed,
        [
            ("target".into(), "\"grpc://a\""),
            ("tls.key".into(), "tls"),
            ("tls.groups.0".into(), "\"X25518\""),
            ("call.grpc.method".into(), "grpc"),
            ("load.rate".into(), "\"0/s\""),
            ("objective.p99".into(), "\"10ms\""),
            ("watch".into(), "watch"),
        ]
    );
    assert_eq!(problems[2].help.as_deref(), Some("did you mean `X25519`?"));
}

#[test]
fn plaintext_target_rejects_tls_settings() {
    let problems = wrong(&format!(
        "target = \"grpc://a:1\"\n[tls]\nca = \"ca.crt\"\n{CALL}[load]\nrate = \"1/s\"\ncalls = 1"
    ));
    assert_eq!(problems, ["`tls.ca`: a TLS setting for a plaintext target"]);
}

#[test]
fn non_utf8_path_counts_as_setting() {
    let mut spec = read(&format!("target = \"grpc://a:1\"\n{CALL}")).expect("readable");
    let ca = std::ffi::OsStr::from_bytes(b"\xff.crt");
    spec.tls.get_or_insert_default().ca = Some(ca.into());
    let problems = resolve(&spec, &FakeContext).expect_err("a wrong plan");
    let mut of_tls = problems.iter().filter(|problem| problem.key == "tls");
    assert!(of_tls.next().is_some(), "{problems:?}");
}

#[test]
fn saved_plan_round_trips_without_secrets() {
    for load in [
        "rate = \"1000/s\"\nduration = \"30s\"\nwarmup = \"5s\"",
        "rate = \"3/s\"\ncalls = 7\nreuse = \"never\"\narrivals = \"poisson\"",
        "rate = { from = \"1/s\", to = \"100/s\", over = \"10s\" }\nduration = \"15s\"\nwarmup = \"2s\"",
        "steps = [{ rate = \"1/s\", for = \"10s\" }, { from = \"1/s\", to = \"9/s\", for = \"1m\" }]",
        "clients = 20\ncalls = 100\nthink = \"1ms\"\nconnections = 4\ndeadline = \"none\"\nworkers = 2\nspin = \"0s\"\nconnect_rate = \"100/s\"\nsource_addresses = [\"127.0.0.2-127.0.0.4\"]",
    ] {
        let text = format!(
            "target = \"grpcs://a:1\"\nrequests = true\n[tls]\nca = \"ca\"\ncert = \"c\"\nkey = \"k\"\ngroups = [\"x25519\"]\n[call.grpc]\nmethod = \"/a.B/C\"\nmessage = {{ n = 1 }}\nmetadata = {{ authorization = \"Bearer hush\", x-id = \"5\" }}\n[load]\n{load}\n[objective]\np99 = \"<10ms\"\n[watch]\noff = true\n"
        );
        let typed = read(&text).expect("readable");
        let first = resolve(&typed, &FakeContext).expect("right");
        let saved = typed.with_defaults(&first).to_toml().expect("writable");
        assert!(!saved.contains("hush"), "{saved}");
        let again = resolve(&read(&saved).expect("readable"), &FakeContext).expect("right");
        assert_eq!(again, first, "{saved}");
        assert_eq!(
            read(&saved)
                .expect("readable")
                .with_defaults(&again)
                .to_toml()
                .expect("writable"),
            saved
        );
    }
}

#[test]
fn objectives_and_watch_are_resolved() {
    let plan = plan(&format!(
        "target = \"grpc://a:1\"\n{CALL}[load]\nrate = \"1/s\"\ncalls = 1\n[objective]\nerrors = \"< 0.1%\"\np99 = \"< 10ms\"\n[watch]\nport = 99\n"
    ));
    let metrics: BTreeMap<&str, Metric> = plan
        .objectives
        .iter()
        .map(|o| (o.text.as_str(), o.metric))
        .collect();
    assert_eq!(
        metrics,
        BTreeMap::from([
            ("errors < 0.1%", Metric::Errors),
            (
                "p99 < 10ms",
                Metric::Time(TimeMetric::Response, Statistic::Percentile(99.0))
            )
        ])
    );
    assert_eq!(plan.watch, WatchedProcess::Port(99));
}

#[test]
fn stage_objectives_require_existing_stages() {
    let text = |objective: &str| {
        format!(
            "target = \"grpc://a:1\"\n{CALL}[load]\nsteps = [{{ name = \"calm\", rate = \"1/s\", for = \"5s\" }}, {{ rate = \"2/s\", for = \"5s\" }}]\n[objective]\n{objective}\n"
        )
    };
    let found = plan(&text(
        "\"p99 at calm\" = \"< 10ms\"\n\"p99 at step 2\" = \"< 20ms\"",
    ));
    let stages: Vec<_> = found
        .objectives
        .iter()
        .map(|o| o.stage.as_deref())
        .collect();
    assert_eq!(stages, [Some("calm"), Some("step 2")]);
    let problem = wrong(&text("\"p99 at peak\" = \"< 10ms\"")).join("\n");
    assert!(
        problem.contains(
            "no stage is called \"peak\": the stages of this load are \"calm\", \"step 2\""
        ),
        "{problem}"
    );
}

#[test]
fn scheme_must_match_call_section() {
    let problems = wrong(&format!(
        "target = \"http://a:1\"\n{CALL}[load]\nrate = \"1/s\"\nduration = \"1s\"\n"
    ));
    assert!(
        problems[0]
            .contains("scheme `http` is for http calls, not for grpc calls: write grpc://a:1"),
        "{problems:?}"
    );
    let problems = wrong(&format!(
        "target = \"http://a:1\"\n{CALL}[call.http]\n[load]\nrate = \"1/s\"\nduration = \"1s\"\n"
    ));
    assert!(
        problems[0].contains("`call.http`: can't be combined with call.grpc"),
        "{problems:?}"
    );
}

#[test]
fn server_trust_settings_are_mutually_exclusive() {
    let plan_of = |tls: &str| {
        plan(&format!(
            "target = \"grpcs://a:1\"\n{CALL}[tls]\n{tls}\n[load]\nrate = \"1/s\"\nduration = \"1s\"\n"
        ))
    };
    let trust = |tls: &str| plan_of(tls).tls.expect("secured").trust;
    let digits = "5b".repeat(32);
    assert_eq!(trust("ca = \"ca.crt\""), ServerTrust::Ca("ca.crt".into()));
    assert_eq!(trust("insecure = true"), ServerTrust::Unchecked);
    assert_eq!(trust("insecure = false"), ServerTrust::System);
    let pin = format!("pin = [\"SHA256:{digits}\"]");
    assert_eq!(
        trust(&pin),
        ServerTrust::Pinned(vec![crate::Fingerprint([0x5b; 32])])
    );
    for (tls, words) in [
        (
            format!("ca = \"ca.crt\"\n{pin}"),
            "`tls.pin`: a pinned certificate is not checked against a CA",
        ),
        (
            format!("insecure = true\n{pin}"),
            "`tls.insecure`: it disables all certificate checks",
        ),
        ("pin = []".to_owned(), "`tls.pin`: empty"),
        (
            "pin = [\"sha1:00\"]".to_owned(),
            "`tls.pin`: `sha1:00` is not a certificate's fingerprint",
        ),
    ] {
        let said = wrong(&format!(
            "target = \"grpcs://a:1\"\n{CALL}[tls]\n{tls}\n[load]\nrate = \"1/s\"\nduration = \"1s\"\n"
        ));
        assert!(said.join("\n").contains(words), "{said:?}");
    }
}

#[test]
fn typed_steps_equal_those_of_plans() {
    let table = |text: &str| toml::from_str::<StepSpec>(text).expect("a step");
    for (typed, step) in [
        ("10s:100/s", "for = \"10s\"\nrate = \"100/s\""),
        ("10:60/m", "for = \"10s\"\nrate = \"1/s\""),
        ("1m:0..5", "for = \"1m\"\nfrom = \"0/s\"\nto = \"5/s\""),
    ] {
        assert_eq!(typed.parse(), Ok(table(step)), "{typed}");
    }
    for wrong in ["10s", "10s:", "x:1/s", "10s:1/s..", "10s:1/x"] {
        assert!(wrong.parse::<StepSpec>().is_err(), "{wrong}");
    }
}
