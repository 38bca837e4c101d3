use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::super::{EncodedCall, GrpcSpec, Messages, locate, read};
use super::load::stage;
use super::*;
use crate::plan::{
    ChainCheck, Compression, Group, GrpcCall, MethodKind, Metric, Pace, RecordLayer, Spacing,
    Statistic, Suite, Target, Timed, TlsPlan, TlsVersion, Trust,
};
use crate::schedule::Schedule;
use crate::template::{self, Moment, Render, Rows, Template};

struct World;

/// A message that is its own text.
#[derive(Debug)]
struct Echo(Template);

impl Render for Echo {
    fn render(&self, moment: &Moment<'_>, out: &mut Vec<u8>) {
        self.0.write(moment, out);
    }
    fn most(&self) -> usize {
        self.0.bounds().1
    }
}

impl Surroundings for World {
    fn variable(&self, name: &str) -> Option<String> {
        match name {
            "TOKEN" | "PLIMSOLL_METADATA_AUTHORIZATION" => Some("Bearer hush".into()),
            "BRACES" => Some("hush{{".into()),
            "VARYING" => Some("Bearer {{row.name}}".into()),
            _ => None,
        }
    }
    fn read_bytes(&self, path: &Path) -> io::Result<Vec<u8>> {
        match path.to_str() {
            Some("one.bin") => Ok(vec![8, 1]),
            Some("many.bin") => Ok(vec![2, 8, 2, 0]),
            Some("cut.bin") => Ok(vec![2, 8]),
            _ => Err(io::Error::from(io::ErrorKind::NotFound)),
        }
    }
    fn read(&self, path: &Path) -> io::Result<String> {
        match path.to_str() {
            Some("order.json") => Ok("{\"price\": 5}\n".into()),
            Some("users.csv") => Ok("name,age\nann,5\nbob,7\ncy,9\n".into()),
            Some("odd.csv") => {
                Ok("plain,lines,blank,token\na,b,c,AQID\na,\"b\nc\",\" c\",AQ*D\n".into())
            }
            _ => Err(io::Error::from(io::ErrorKind::NotFound)),
        }
    }
    fn encode_grpc(
        &self,
        _: &GrpcSpec,
        method: &str,
        messages: Messages<'_>,
        rows: Option<&Rows>,
        _: &[(String, String)],
    ) -> Result<EncodedCall, Problem> {
        let json = match messages {
            Messages::Json(json) => json,
            Messages::Binary(given) => {
                let bytes = given.iter().map(|message| message.bytes.clone()).collect();
                return Ok(EncodedCall {
                    method: method.into(),
                    kind: MethodKind::ClientStreaming,
                    messages: bytes,
                    varying: Vec::new(),
                    answer: None,
                });
            }
        };
        if method == "score.ScoreService/GetScor" {
            return Err(Problem::new("call.grpc.method", "no such method"));
        }
        Ok(EncodedCall {
            method: method.trim_start_matches('/').into(),
            kind: match method.rsplit('/').next() {
                Some("Chat") => MethodKind::Bidirectional,
                Some("Watch") => MethodKind::ServerStreaming,
                _ => MethodKind::Unary,
            },
            messages: vec![json.as_bytes().to_vec()],
            varying: match template::has_fields(json) {
                true => vec![Arc::new(Echo(
                    Template::parse(json, &mut 0, rows)
                        .map_err(|e| Problem::new("call.grpc.message", e.to_string()))?,
                ))],
                false => Vec::new(),
            },
            answer: None,
        })
    }
}

#[test]
fn what_a_stream_does() {
    let plan = |lines: &str| {
        let text = format!(
            "target = \"grpc://h:1\"\n[call.grpc]\nmethod = \"a.S/Chat\"\n{lines}\n[load]\nclients = 1\ncalls = 1\n"
        );
        let call = grpc(&plan(&text));
        call.stream.unwrap()
    };
    assert_eq!(
        plan("stream_duration = \"30s\"").duration,
        Some(Duration::from_secs(30))
    );
    let stream = plan("messages = 7\npace = \"20ms\"\nexpect = 7\ncancel_after = 0");
    assert_eq!(
        (stream.count, stream.expect, stream.cancel_after),
        (7, Some(7), Some(0))
    );
    assert_eq!(stream.pace, Pace::Every(Duration::from_millis(20)));
    assert_eq!(plan("pace = \"answers\"").pace, Pace::Answers);
    let stream = plan("");
    assert_eq!(
        (stream.count, stream.pace, stream.expect),
        (1, Pace::None, None)
    );

    let problems = |method: &str, lines: &str| {
        wrong(&format!(
            "target = \"grpc://h:1\"\n[call.grpc]\nmethod = \"a.S/{method}\"\n{lines}\n[load]\nclients = 1\ncalls = 1\n"
        ))
        .join("; ")
    };
    assert!(
        problems("Get", "messages = 2")
            .contains("`call.grpc.messages`: for streams of requests, and a.S/Get is unary")
    );
    assert!(problems("Get", "cancel_after = 2").contains("call.grpc.cancel_after"));
    assert!(problems("Get", "stream_duration = \"1s\"").contains("call.grpc.stream_duration"));
    assert!(
        problems("Chat", "stream_duration = \"30s\"\ndeadline = \"30s\"")
            .contains("streams of 30s would run into their deadline")
    );
    assert!(problems("Watch", "pace = \"1s\"").contains("a.S/Watch is server streaming"));
    let wrong = read("[call.grpc]\npace = \"slowly\"").unwrap_err();
    assert_eq!(wrong[0].key, "call.grpc.pace");
    assert!(wrong[0].message.contains("or \"answers\""), "{}", wrong[0]);
}

const CALL: &str = "[call.grpc]\nmethod = \"score.ScoreService/GetScore\"\n";

fn plan(text: &str) -> Plan {
    let spec = read(text).expect("readable");
    resolve(&spec, &World).unwrap_or_else(|problems| panic!("{problems:?}"))
}

fn grpc(plan: &Plan) -> GrpcCall {
    plan.call.of_type::<GrpcCall>().expect("gRPC").clone()
}

fn wrong(text: &str) -> Vec<String> {
    let spec = read(text).expect("readable");
    let mut problems = resolve(&spec, &World).expect_err("a wrong plan");
    locate(text, &mut problems);
    problems.iter().map(ToString::to_string).collect()
}

fn wrong_load(load: &str) -> Vec<String> {
    wrong(&format!("target = \"grpc://a:1\"\n{CALL}[load]\n{load}\n"))
}

fn load(load: &str) -> Load {
    plan(&format!("target = \"grpc://a:1\"\n{CALL}[load]\n{load}\n")).load
}

#[test]
fn the_defaults_are_those_documented() {
    let plan = plan(&format!(
        "target = \"grpcs://localhost:50051\"\n{CALL}[load]\nrate = \"1000/s\"\nduration = \"30s\"\n"
    ));
    assert_eq!(plan.name, "GetScore, steady");
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
            trust: Trust::System,
            crl: None,
            identity: None,
            server_name: None,
            suites: vec![
                Suite::Aes128GcmSha256,
                Suite::Aes256GcmSha384,
                Suite::Chacha20Poly1305Sha256
            ],
            groups: Group::DEFAULT.to_vec(),
            resume: false,
            early_data: false,
            full: None,
            versions: vec![TlsVersion::V1_3],
            compressed: false,
            key_log: None,
            records: RecordLayer::Own,
            chain: ChainCheck::Each,
        })
    );
    assert_eq!(
        plan.load,
        Load {
            arrivals: Arrivals::Open(Spacing::Constant),
            stages: vec![stage(
                "steady",
                false,
                Some(Duration::from_secs(30)),
                1000.0,
                1000.0
            )],
            connections: 1,
            reuse: Reuse::Always,
            calls: None,
            deadline: Some(Duration::from_secs(10)),
            connect_timeout: Duration::from_secs(10),
            connect_rate: None,
            connection_lifetime: None,
            calls_per_connection: None,
            resolve_interval: Duration::from_secs(30),
            drain: Duration::from_secs(10),
            processes: None,
            workers: None,
            precision: None,
            spin: Duration::from_micros(50),
            tick: Duration::ZERO,
            read_buffer: 128 << 10,
            source_addresses: vec![],
            turns: None,
            count_bytes: false,
            last_core: false,
        }
    );
    assert_eq!(
        (plan.seed, plan.keep_requests, plan.watch),
        (1, false, Watch::TargetPort)
    );
}

#[test]
fn every_kind_of_load_is_understood() {
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
    assert_eq!(steps.arrivals, Arrivals::Open(Spacing::Poisson));
    let fleet = load(
        "clients = 200\ncalls = 5000\nthink = \"5ms\"\ndeadline = \"none\"\nconnections = 200",
    );
    assert_eq!(
        fleet.arrivals,
        Arrivals::Closed {
            clients: 200,
            think: Duration::from_millis(5)
        }
    );
    assert_eq!(fleet.stages, [stage("clients", false, None, 0.0, 0.0)]);
    assert_eq!(
        (fleet.deadline, fleet.drain),
        (None, Duration::from_secs(10))
    );
    let cold = load("rate = \"4/s\"\ncalls = 20\nreuse = \"never\"\ndeadline = \"2s\"");
    assert_eq!(cold.stages[0].duration, Some(Duration::from_secs(5)));
    assert_eq!(
        (cold.reuse, cold.drain),
        (Reuse::Never, Duration::from_secs(2))
    );
    // A call may take its deadline.
    let slow = load("rate = \"4/s\"\ncalls = 20\ndeadline = \"90s\"");
    assert_eq!(slow.drain, Duration::from_secs(90));
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
fn calls_alone_end_an_open_loop_with_exactly_that_many() {
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
fn contradictions_in_the_load_name_their_keys() {
    for (typed, expected) in [
        (
            "rate = \"0/s\"\nduration = \"1s\"",
            "`load.rate`: a rate of 0 sends nothing",
        ),
        ("duration = \"1s\"", "`load`: neither a rate nor clients"),
        (
            "rate = \"1/s\"\nclients = 2\nduration = \"1s\"",
            "`load.clients`: given beside load.rate",
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
            "`load.arrivals`: arrivals belong to an open loop",
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
            "`load.workers`: 3 workers, and connections for 2",
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
fn all_problems_are_reported_at_once_and_in_place() {
    let text = "target = \"grpc://a\"\n[tls]\ncert = \"c\"\ngroups = [\"X25518\"]\n[call.grpc]\n[load]\nrate = \"0/s\"\n[objective]\n\"p99\" = \"10ms\"\n[watch]\npid = 1\noff = true\n";
    let spec = read(text).expect("readable");
    let mut problems = resolve(&spec, &World).expect_err("a wrong plan");
    locate(text, &mut problems);
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
fn a_plaintext_target_with_tls_settings_is_refused() {
    let problems = wrong(&format!(
        "target = \"grpc://a:1\"\n[tls]\nca = \"ca.crt\"\n{CALL}[load]\nrate = \"1/s\"\ncalls = 1"
    ));
    assert_eq!(problems, ["`tls`: TLS settings for a plaintext target"]);
}

#[test]
fn messages_and_metadata_are_judged() {
    let with = |call: &str| {
        format!("target = \"grpc://a:1\"\n[load]\nrate = \"1/s\"\ncalls = 1\n{CALL}{call}\n")
    };
    let call = grpc(&plan(&with("message = { json = \"[0.1, 0.2]\" }")));
    assert_eq!(call.message, b"{\"json\":\"[0.1, 0.2]\"}");
    let call = grpc(&plan(&with(
        "message_file = \"order.json\"\n[call.grpc.metadata]\nX-Id = \"7\"\nauthorization = { env = \"TOKEN\" }",
    )));
    assert_eq!(call.message, b"{\"price\": 5}\n");
    assert_eq!(
        call.metadata,
        [
            ("x-id".into(), "7".into()),
            ("authorization".into(), "Bearer hush".into())
        ]
    );
    for (typed, expected) in [
        (
            "message = \"{}\"\nmessage_file = \"order.json\"",
            "`call.grpc.message_file`: given beside",
        ),
        (
            "message_file = \"gone.json\"",
            "`call.grpc.message_file`: can't read gone.json",
        ),
        (
            "message = { id = \"{{sec}}\" }",
            "`call.grpc.message`: `{{sec}}` is unknown: did you mean seq?",
        ),
        (
            "metadata = { x-id = \"{{uid}}\" }",
            "`call.grpc.metadata.x-id`: `{{uid}}` is unknown: did you mean uuid?",
        ),
        (
            "metadata = { x-id = \"{{row.name}}\" }",
            "`call.grpc.metadata.x-id`: `{{row.name}}` needs rows",
        ),
        (
            "metadata = { x-id = \"{{message}}\" }",
            "`call.grpc.metadata.x-id`: {{message}}: metadata go before",
        ),
        (
            "metadata = { x-id = \"é{{seq}}\" }",
            "`call.grpc.metadata.x-id`: not a metadata value",
        ),
        (
            "metadata = { x-id = \"{{seq}} \" }",
            "`call.grpc.metadata.x-id`: not a metadata value",
        ),
        (
            "metadata = { id-bin = \"{{seq}}\" }",
            "`call.grpc.metadata.id-bin`: the value of a name that ends in -bin is one field alone",
        ),
        (
            "metadata = { authorization = { env = \"BRACES\" } }",
            "`call.grpc.metadata.authorization`: its braces hold no field",
        ),
        (
            "metadata = { user-agent = \"me\" }",
            "`call.grpc.metadata.user-agent`: has a key of its own",
        ),
        (
            "user_agent = \" me\"",
            "`call.grpc.user_agent`: not a field value",
        ),
        (
            "compression = \"zstd\"",
            "`call.grpc.compression`: `zstd` is unknown",
        ),
        (
            "metadata = { \"grpc-timeout\" = \"1S\" }",
            "`call.grpc.metadata.grpc-timeout`: set by gRPC itself",
        ),
        (
            "metadata = { \"a b\" = \"1\" }",
            "`call.grpc.metadata.a b`: not a metadata name",
        ),
        (
            "metadata = { x = \"é\" }",
            "`call.grpc.metadata.x`: not a metadata value",
        ),
        (
            "metadata = { x-bin = \"%\" }",
            "`call.grpc.metadata.x-bin`: not base64",
        ),
        (
            "metadata = { x = { env = \"NOWHERE\" } }",
            "`call.grpc.metadata.x`: the environment variable NOWHERE is not set",
        ),
        (
            "import_path = [\"p\"]",
            "`call.grpc.import_path`: used only with",
        ),
        (
            "max_message = \"0B\"",
            "`call.grpc.max_message`: out of range",
        ),
        ("deadline = \"0s\"", "`call.grpc.deadline`: a deadline of 0"),
    ] {
        let problems = wrong(&with(typed));
        assert_eq!(problems.len(), 1, "{typed}: {problems:?}");
        assert!(problems[0].starts_with(expected), "{typed}: {problems:?}");
    }
}

#[test]
fn a_saved_plan_is_the_same_plan_and_holds_no_secret() {
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
        let first = resolve(&typed, &World).expect("right");
        let saved = typed.filled_in(&first).to_toml().expect("writable");
        assert!(!saved.contains("hush"), "{saved}");
        let again = resolve(&read(&saved).expect("readable"), &World).expect("right");
        assert_eq!(again, first, "{saved}");
        assert_eq!(
            read(&saved)
                .expect("readable")
                .filled_in(&again)
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
                Metric::Time(Timed::Response, Statistic::Percentile(99.0))
            )
        ])
    );
    assert_eq!(plan.watch, Watch::Port(99));
}

#[test]
fn objectives_of_single_stages_name_stages_that_are_there() {
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
fn scheme_and_section_must_be_of_one_protocol() {
    let problems = wrong(&format!(
        "target = \"http://a:1\"\n{CALL}[load]\nrate = \"1/s\"\nduration = \"1s\"\n"
    ));
    assert!(
        problems[0].contains(
            "scheme `http` goes with [call.http], and [call.grpc] is given: write grpc://a:1"
        ),
        "{problems:?}"
    );
    let problems = wrong(&format!(
        "target = \"http://a:1\"\n{CALL}[call.http]\n[load]\nrate = \"1/s\"\nduration = \"1s\"\n"
    ));
    assert!(
        problems[0].contains("`call.http`: given beside call.grpc"),
        "{problems:?}"
    );
}

#[test]
fn messages_are_taken_from_binary_files() {
    let with = |binary: &str| {
        format!("target = \"grpc://a:1\"\n[load]\nrate = \"1/s\"\ncalls = 1\n{CALL}{binary}\n")
    };
    for (binary, messages) in [
        ("message_binary = \"one.bin\"", &[&[8, 1][..]][..]),
        (
            "message_binary = { delimited = \"many.bin\" }",
            &[&[8, 2], &[]],
        ),
        (
            "message_binary = [{ base64 = \"CAM=\" }, \"one.bin\", { file = \"one.bin\" }]",
            &[&[8, 3], &[8, 1], &[8, 1]],
        ),
    ] {
        let text = with(binary);
        let first = plan(&text);
        let of = |plan: &Plan| grpc(plan).stream.unwrap().messages;
        assert_eq!(of(&first), messages, "{binary}");
        // As the run directory has it, without the files.
        let saved = read(&text).unwrap().filled_in(&first).to_toml().unwrap();
        assert!(!saved.contains(".bin\""), "{saved}");
        assert_eq!(of(&plan(&saved)), messages, "{saved}");
    }
    for (binary, expected) in [
        (
            "message = \"{}\"\nmessage_binary = \"one.bin\"",
            "`call.grpc.message_binary`: given beside call.grpc.message",
        ),
        (
            "message_binary = []",
            "`call.grpc.message_binary`: no message",
        ),
        (
            "message_binary = [\"gone.bin\", \"one.bin\"]",
            "`call.grpc.message_binary`: can't read gone.bin",
        ),
        (
            "message_binary = { delimited = \"cut.bin\" }",
            "`call.grpc.message_binary`: cut.bin, message 1: its length at byte 0 is 2, and 1 bytes",
        ),
        (
            "message_binary = { base64 = \"*\" }",
            "`call.grpc.message_binary`: message 1: not base64",
        ),
    ] {
        let problems = wrong(&with(binary));
        assert!(problems[0].starts_with(expected), "{problems:?}");
    }
}

#[test]
fn metadata_vary_and_every_row_is_judged() {
    let with = |metadata: &str, file: &str| {
        format!(
            "target = \"grpc://a:1\"\n[rows]\nfile = \"{file}\"\n[load]\nrate = \"1/s\"\ncalls = 1\n\
             {CALL}metadata = {{ {metadata} }}\n"
        )
    };
    let typed = "b = \"{{row.name}}-{{{{\", a-bin = \"{{uuid}}\", c = \"{{{{\", \
                 authorization = { env = \"VARYING\" }";
    let plan = plan(&with(typed, "users.csv"));
    let call = grpc(&plan);
    assert_eq!(call.metadata, [("c".to_owned(), "{{".to_owned())]);
    let varying = call.varying_metadata.as_ref().unwrap();
    let of_call = |number| {
        let mut values = varying.fields.iter().map(|field| {
            let mut value = Vec::new();
            let moment = varying.variation.moment(number, 0, 0);
            field.write(&moment, &mut value);
            assert!(value.len() <= field.most());
            (field.name.as_str(), String::from_utf8(value).unwrap())
        });
        let [uuid, authorization, b] = [(); 3].map(|()| values.next().unwrap());
        assert_eq!((uuid.0, uuid.1.len()), ("a-bin", 22));
        assert_eq!((authorization.0, b.0), ("authorization", "b"));
        (authorization.1, b.1)
    };
    assert_eq!(of_call(1), ("Bearer bob".into(), "bob-{{".into()));
    assert_eq!(of_call(3), ("Bearer ann".into(), "ann-{{".into()));
    // What shards are given is what was typed.
    let secrets = crate::spec::secrets(&plan);
    let authorization = "PLIMSOLL_METADATA_AUTHORIZATION".to_owned();
    assert_eq!(secrets, [(authorization, "Bearer {{row.name}}".to_owned())]);

    for (metadata, expected) in [
        ("x = \"{{row.plain}}\"", None),
        (
            "x = \"{{row.lines}}\"",
            Some("odd.csv, row 2, column \"lines\": not a metadata value: use printable ASCII"),
        ),
        ("x = \"<{{row.blank}}>\"", None),
        (
            "x = \"{{row.blank}}\"",
            Some("odd.csv, row 2, column \"blank\": not a metadata value: use printable ASCII"),
        ),
        (
            "x-bin = \"{{row.token}}\"",
            Some("odd.csv, row 2, column \"token\": not base64"),
        ),
    ] {
        let text = with(metadata, "odd.csv");
        match expected {
            None => drop(self::plan(&text)),
            Some(expected) => {
                let problems = wrong(&text);
                assert_eq!(problems.len(), 1, "{problems:?}");
                assert!(problems[0].contains(expected), "{problems:?}");
            }
        }
    }
}

#[test]
fn rows_are_read_and_counted() {
    let text = |rows: &str, load: &str| {
        format!(
            "target = \"grpc://h:1\"\nseed = 3\n[rows]\n{rows}\n[call.grpc]\nmethod = \"a.S/M\"\n\
             message = {{ name = \"{{{{row.name}}}} {{{{seq}}}}\" }}\n[load]\n{load}\n"
        )
    };
    let steady = "rate = \"10/s\"\ncalls = 3";
    let plan = plan(&text("file = \"users.csv\"\norder = \"unique\"", steady));
    let call = grpc(&plan);
    let varying = call.varying.unwrap();
    let mut message = Vec::new();
    varying.messages[0].render(&varying.variation.moment(2, 0, 0), &mut message);
    assert_eq!(message, b"{\"name\":\"cy 2\"}");

    let file = "file = \"users.csv\"";
    for (rows, load, expected) in [
        ("", steady, "`rows.file`: missing"),
        (
            "file = \"gone.csv\"",
            steady,
            "`rows.file`: can't read gone.csv",
        ),
        (
            "file = \"order.json\"\norder = \"any\"",
            steady,
            "`rows.order`: `any` is unknown",
        ),
        (
            &format!("{file}\norder = \"unique\""),
            "rate = \"10/s\"\ncalls = 4",
            "`rows.order`: \"unique\" with 3 rows",
        ),
        (
            &format!("{file}\norder = \"unique\""),
            "rate = \"10/s\"\ncalls = 3\nwarmup = \"1s\"",
            "`rows.order`: \"unique\" with 3 rows",
        ),
        (
            &format!("{file}\norder = \"unique\""),
            "clients = 2\nduration = \"1s\"",
            "`rows.order`: \"unique\" needs a number of calls",
        ),
        (
            &format!("{file}\norder = \"unique\""),
            "clients = 2\ncalls = 4",
            "`rows.order`: \"unique\" with 3 rows",
        ),
    ] {
        let problems = wrong(&text(rows, load)).join("; ");
        assert!(problems.contains(expected), "{rows} {load}: {problems}");
    }
    let unused = text(file, steady).replace("{{row.name}}", "ann");
    assert!(
        wrong(&unused)
            .join("; ")
            .contains("`rows`: neither a message nor metadata have a field")
    );
}

#[test]
fn compression_and_user_agent() {
    let text = "target = \"grpc://h:1\"\n[call.grpc]\nmethod = \"a.S/M\"\ncompression = \"gzip\"\nuser_agent = \"shop/1\"\n[load]\nrate = \"1/s\"\ncalls = 1\n";
    let call = grpc(&plan(text));
    assert_eq!(call.compression, Some(Compression::Gzip));
    assert_eq!(call.user_agent.as_deref(), Some("shop/1"));
}

#[test]
fn a_server_is_held_to_one_thing() {
    let plan_of = |tls: &str| {
        plan(&format!(
            "target = \"grpcs://a:1\"\n{CALL}[tls]\n{tls}\n[load]\nrate = \"1/s\"\nduration = \"1s\"\n"
        ))
    };
    let trust = |tls: &str| plan_of(tls).tls.expect("secured").trust;
    let digits = "5b".repeat(32);
    assert_eq!(trust("ca = \"ca.crt\""), Trust::Ca("ca.crt".into()));
    assert_eq!(trust("insecure = true"), Trust::Unchecked);
    assert_eq!(trust("insecure = false"), Trust::System);
    let pin = format!("pin = [\"SHA256:{digits}\"]");
    assert_eq!(
        trust(&pin),
        Trust::Pinned(vec![crate::Fingerprint([0x5b; 32])])
    );
    for (tls, words) in [
        (
            format!("ca = \"ca.crt\"\n{pin}"),
            "`tls.pin`: a pinned certificate is held to no CA",
        ),
        (
            format!("insecure = true\n{pin}"),
            "`tls.insecure`: with it no certificate is held to anything",
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
