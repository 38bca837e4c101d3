//! Simulation of journeys over HTTP/1.1: users who log in, list, order one of what was listed, and leave, on a server
//! that refuses some requests, and lacks what was asked for in some answers.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::script::user::UserScripts;
use plimsoll_engine::script::worker::ScriptWorker;
use plimsoll_engine::transport::network::simulated::{
    NetworkConditions, ServerAction, SimulatedNetwork, SimulatedPeerId, SimulatedServer,
};
use plimsoll_engine::worker::{StopUrgency, WorkerControl, WorkerInterval, WorkerShare};
use plimsoll_model::metrics::measure::{Count, TimeMeasure};
use plimsoll_model::plan::Shard;
use plimsoll_model::records::record::{RecordedInterval, StageRecord};
use plimsoll_model::runs::run::UserLevels;
use plimsoll_model::spec::{self, ResolveContext};
use plimsoll_model::{Plan, Time};
use plimsoll_protocols::http::HttpCall;
use plimsoll_protocols::journey::JourneyScenario;

use super::{START, SoleWorkerControl, draw};

/// A machine without files and variables.
struct NoSurroundings;

impl ResolveContext for NoSurroundings {
    fn env_variable(&self, _: &str) -> Option<String> {
        None
    }
    fn read(&self, _: &Path) -> std::io::Result<String> {
        Err(std::io::ErrorKind::NotFound.into())
    }
    fn read_bytes(&self, _: &Path) -> std::io::Result<Vec<u8>> {
        Err(std::io::ErrorKind::NotFound.into())
    }
    fn run_command(&self, _: &str) -> Result<String, String> {
        Err("no commands here".to_owned())
    }
}

pub(super) fn plan(text: &str) -> Plan {
    plimsoll_protocols::registry::register_protocols();
    let spec = spec::read(text).unwrap();
    spec::resolve(&spec, &NoSurroundings).unwrap()
}

/// A shop that answers each request after `takes`, and refuses some by a seed.
#[derive(Default)]
struct Shop {
    seed: u64,
    /// The share of requests that are refused with 503, in per cent.
    refused: u64,
    /// The share of logins that are answered without a token, in per cent.
    tokenless: u64,
    takes: Duration,
    /// Requests for this path wait until the time.
    frozen: Option<(&'static str, Time)>,
    /// Requests by the first part of their path.
    served: BTreeMap<String, u64>,
    requests: u64,
    received: BTreeMap<SimulatedPeerId, Vec<u8>>,
    answers: BTreeMap<SimulatedPeerId, Vec<u8>>,
    problems: Vec<String>,
}

impl Shop {
    fn answer(&mut self, head: &str, body: &str) -> (u16, String) {
        self.requests += 1;
        let draw = |name| draw(self.seed, self.requests << 8 | name, 0, 99);
        let (refuses, is_tokenless) = (draw(1) < self.refused, draw(2) < self.tokenless);
        let path = head.split(' ').nth(1).unwrap_or_default();
        let first = path
            .trim_start_matches('/')
            .split('/')
            .next()
            .unwrap_or_default();
        *self.served.entry(first.to_owned()).or_default() += 1;
        let has_token = head.lines().any(|line| line == "authorization: Bearer t-1");
        let has_cookie = head.lines().any(|line| line == "cookie: sid=s1");
        if first != "login" && first != "leave" && !(has_token && has_cookie) {
            self.problems.push(format!("not logged in: {head}"));
        }
        if refuses {
            return (503, "{}".to_owned());
        }
        match first {
            "login" if is_tokenless => (200, r#"{"error":"no token"}"#.to_owned()),
            "login" => (200, r#"{"token":"t-1"}"#.to_owned()),
            "items" => (200, r#"{"items":[{"id":3},{"id":5},{"id":8}]}"#.to_owned()),
            "orders" => {
                if !["/orders/3", "/orders/5", "/orders/8"].contains(&path) || body != "{\"n\":1}" {
                    self.problems.push(format!("not an order: {path} {body}"));
                }
                (201, "{}".to_owned())
            }
            _ => (200, "{}".to_owned()),
        }
    }
}

impl SimulatedServer for Shop {
    fn on_open(&mut self, peer: SimulatedPeerId, _: Time, _: &mut Vec<ServerAction>) {
        self.received.insert(peer, Vec::new());
    }

    fn on_receive(
        &mut self,
        peer: SimulatedPeerId,
        bytes: &[u8],
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        let received = self.received.entry(peer).or_default();
        received.extend_from_slice(bytes);
        let text = String::from_utf8(received.clone()).unwrap();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            return;
        };
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        if body.len() < length.map_or(0, |length| length.parse().unwrap()) {
            return;
        }
        received.clear();
        let (status, answer) = self.answer(head, body);
        let cookie = if head.contains(" /login ") {
            "set-cookie: sid=s1; Path=/\r\n"
        } else {
            ""
        };
        let length = answer.len();
        let answer =
            format!("HTTP/1.1 {status} X\r\n{cookie}content-length: {length}\r\n\r\n{answer}");
        self.answers.insert(peer, answer.into_bytes());
        let mut after = self.takes;
        if let Some((path, until)) = self.frozen
            && head.contains(path)
            && now < until
        {
            after += until.duration_since(now);
        }
        actions.push(ServerAction::Timer { after, tag: 0 });
    }

    fn on_timer(
        &mut self,
        peer: SimulatedPeerId,
        _: u64,
        _: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        if let Some(answer) = self.answers.remove(&peer) {
            actions.push(ServerAction::Send(answer));
        }
    }

    fn on_close(&mut self, peer: SimulatedPeerId, _: Time) {
        self.received.remove(&peer);
        self.answers.remove(&peer);
    }
}

/// Runs a plan against a server over a network without faults.
pub(super) fn run(plan: &Plan, seed: u64, server: &mut impl SimulatedServer) -> StageRecord {
    let mut control = SoleWorkerControl {
        start: Some(START),
        total: RecordedInterval::default(),
    };
    run_with(plan, seed, server, &mut control);
    control.total.stage_mut(0).clone()
}

fn run_with(
    plan: &Plan,
    seed: u64,
    server: &mut impl SimulatedServer,
    control: &mut impl WorkerControl,
) {
    let call: &HttpCall = plan.call.downcast_ref().unwrap();
    let journey = call.journey.as_ref().unwrap();
    let steps = journey.prepare(&["h:1"], &plan.load).unwrap();
    let scenario = JourneyScenario::new(Arc::new((**journey).clone()), steps, plan.seed);
    let users = UserScripts::new(scenario, &plan.target, None, &plan.load);
    let share = WorkerShare::new(Shard::WHOLE_RUN, Arc::new(plan.load.clone()), seed);
    let network = SimulatedNetwork::new(server, NetworkConditions::faultless(seed));
    let mut worker = ScriptWorker::new(share, network, Arc::new(users));
    worker.run(START, control).unwrap();
}

/// Keeps the users of each interval beside the records.
struct UserLog {
    records: SoleWorkerControl,
    users: Vec<UserLevels>,
}

impl WorkerControl for UserLog {
    fn stop_urgency(&self) -> StopUrgency {
        self.records.stop_urgency()
    }

    fn start_time(&self) -> Option<Time> {
        self.records.start_time()
    }

    fn add_connections(&self, change: i64) {
        self.records.add_connections(change);
    }

    fn send_interval(&mut self, interval: WorkerInterval) -> Option<RecordedInterval> {
        self.users.extend(interval.users);
        self.records.send_interval(interval)
    }
}

/// By Little's law, the time of all users together is the sum of their journeys' times.
#[test]
fn users_in_flight_match_journey_times() {
    for seed in 0..100 {
        let steps = STEPS.replace("RULE", "retry").replace("ATTEMPTS", "");
        let load = "[load]\nrate = \"40/s\"\narrivals = \"poisson\"\ncalls = 100\n";
        let text = steps.replace("REPEAT", "3").replace("1ms to 5ms", "500ms");
        let plan = plan(&format!("seed = {seed}\n{text}{load}"));
        let mut shop = Shop {
            seed,
            takes: Duration::from_millis(3),
            ..Shop::default()
        };
        let mut log = UserLog {
            records: SoleWorkerControl {
                start: Some(START),
                total: RecordedInterval::default(),
            },
            users: Vec::new(),
        };
        run_with(&plan, seed, &mut shop, &mut log);
        let measures = &log.records.total.stage_mut(0).measures;
        let journeys = measures.times(TimeMeasure::Journey).histogram().unwrap();
        assert_eq!(journeys.len(), 100, "seed {seed}");
        let expected = journeys.mean() * 100.0 / 1e3;
        let measured = log
            .users
            .iter()
            .map(|users| users.in_flight_us)
            .sum::<u64>() as f64;
        assert!(
            (measured / expected - 1.0).abs() < 0.002,
            "seed {seed}: {measured} µs, not {expected} µs"
        );
        // Each user waits for its connection once, less than a round trip of the simulated network.
        let waited: u64 = log.users.iter().map(|users| users.waiting_us).sum();
        assert!(
            waited > 0 && (waited as f64) < expected / 20.0,
            "seed {seed}: {waited} µs"
        );
        let most = log.users.iter().map(|users| users.in_flight_max).max();
        assert!((20..=100).contains(&most.unwrap()), "seed {seed}: {most:?}");
        assert_eq!(log.users.last().map(|users| users.in_flight), Some(0));
    }
}

const STEPS: &str = r#"
target = "http://h:1"
[[steps]]
name = "log in"
method = "POST"
path = "/login"
body = "{}"
take.token = "/token"
on_failure = "RULE"
ATTEMPTS
[[steps]]
name = "list"
path = "/items"
headers.authorization = "Bearer {{token}}"
pause = "1ms to 5ms"
take.item = "$.items[*].id"
repeat = REPEAT
on_failure = "continue"
[[steps]]
name = "order"
branch = "buy"
weight = 3
if = "item"
method = "POST"
path = "/orders/{{item}}"
body = '{"n":1}'
headers.authorization = "Bearer {{token}}"
pause = "exponential 2ms"
expect = [201]
on_failure = "retry"
backoff = "1ms"
[[steps]]
name = "browse"
branch = "browse"
weight = 2
path = "/items/{{item}}"
headers.authorization = "Bearer {{token}}"
on_failure = "continue"
[[steps]]
name = "leave"
path = "/leave"
pause = "1ms"
"#;

pub(super) fn step<'a>(
    record: &'a StageRecord,
    name: &str,
) -> &'a plimsoll_model::records::record::StepRecord {
    let found = record.steps.iter().find(|step| step.name == name);
    found.unwrap()
}

#[test]
fn every_step_and_journey_is_accounted_for() {
    let (mut ok, mut failed, mut retried) = (0, 0, 0);
    for seed in 0..1_000 {
        let pick = |name, from, to| draw(seed, name, from, to);
        let (rule, attempts) = match pick(1, 0, 2) {
            0 => ("end", ""),
            1 => ("continue", ""),
            _ => ("retry", "attempts = 2"),
        };
        let users = pick(2, 1, 30);
        let load = if pick(3, 0, 1) == 0 {
            format!("[load]\nclients = {}\ncalls = {users}\n", pick(4, 1, users))
        } else {
            format!("[load]\nrate = \"500/s\"\narrivals = \"poisson\"\ncalls = {users}\n")
        };
        let text = STEPS
            .replace("RULE", rule)
            .replace("ATTEMPTS", attempts)
            .replace("REPEAT", &pick(5, 1, 3).to_string());
        let plan = plan(&format!("seed = {seed}\n{text}{load}"));
        let mut shop = Shop {
            seed,
            refused: pick(6, 0, 30),
            tokenless: pick(7, 0, 20),
            takes: Duration::from_micros(pick(8, 0, 3_000)),
            ..Shop::default()
        };
        let record = run(&plan, seed, &mut shop);
        // A step that needs a name that no answer has had is not sent.
        let unsent = record
            .outcomes
            .get(plimsoll_model::Outcome::coded("TAKE_MISSING"));
        assert_eq!(shop.problems, [] as [String; 0], "seed {seed}");
        assert_eq!(record.due, record.ended_calls(), "seed {seed}");
        let due: u64 = record.steps.iter().map(|step| step.due).sum();
        assert_eq!(record.due, due, "seed {seed}");
        for step in &record.steps {
            assert_eq!(
                step.due,
                step.outcomes.total(),
                "seed {seed}: {}",
                step.name
            );
            assert_eq!(
                step.response.len(),
                step.ok_calls(),
                "seed {seed}: {}",
                step.name
            );
        }
        let count = |count| record.measures.counter(count);
        let (users_ok, users_failed) = (count(Count::UsersOk), count(Count::UsersFailed));
        assert_eq!(users_ok + users_failed, users, "seed {seed}");
        let journeys = record.measures.times(TimeMeasure::Journey).len();
        assert_eq!(journeys, users_ok, "seed {seed}");
        assert!(step(&record, "log in").due >= users, "seed {seed}");
        let served = |path: &str| shop.served.get(path).copied().unwrap_or(0);
        assert_eq!(served("login"), step(&record, "log in").due, "seed {seed}");
        assert_eq!(served("leave"), step(&record, "leave").due, "seed {seed}");
        let sent: u64 = shop.served.values().sum();
        assert!(
            sent <= record.due && record.due <= sent + unsent,
            "seed {seed}"
        );
        (ok, failed) = (ok + users_ok, failed + users_failed);
        retried += step(&record, "order").due - step(&record, "order").ok_calls();
    }
    assert!(
        ok > 1_000 && failed > 1_000 && retried > 300,
        "{ok} {failed} {retried}"
    );
}

#[test]
fn stall_in_third_step_lengthens_exactly_its_journeys() {
    // A user arrives every 10 ms, and each step takes 1 ms, the third one after a pause of 20 ms.
    let text = r#"
target = "http://h:1"
[[steps]]
name = "one"
path = "/leave/1"
[[steps]]
name = "two"
path = "/leave/2"
[[steps]]
name = "three"
path = "/leave/3"
pause = "20ms"
[load]
rate = "100/s"
calls = 200
"#;
    let plan = plan(text);
    let until = START + Duration::from_millis(1_000);
    let mut shop = Shop {
        takes: Duration::from_millis(1),
        frozen: Some(("/leave/3", until)),
        ..Shop::default()
    };
    let record = run(&plan, 1, &mut shop);
    assert_eq!((record.due, record.ok_calls()), (600, 600));
    let mean = |times: &plimsoll_model::records::record::TimeHistogram| {
        times.histogram().unwrap().mean() / 1e6
    };
    // User n reaches step three 22 ms after its arrival and waits until the server thaws.
    let waits: f64 = (0..200)
        .map(|n| (1_000.0 - (f64::from(n) * 10.0 + 22.0)).max(0.0))
        .sum();
    let expected = 1.0 + waits / 200.0;
    let three = mean(&step(&record, "three").response);
    assert!(
        (three / expected - 1.0).abs() < 0.01,
        "{three} ms, not {expected} ms"
    );
    let journey = mean(record.measures.times(TimeMeasure::Journey));
    let expected = expected + 22.0;
    assert!(
        (journey / expected - 1.0).abs() < 0.01,
        "{journey} ms, not {expected} ms"
    );
    // The schedule gives every user's time, and so the percentile.
    let mut waits: Vec<f64> = (0..200)
        .map(|n| 1.0 + (1_000.0 - (f64::from(n) * 10.0 + 22.0)).max(0.0))
        .collect();
    waits.sort_by(f64::total_cmp);
    let p99 = |times: &plimsoll_model::records::record::TimeHistogram| {
        times.histogram().unwrap().value_at_quantile(0.99) as f64 / 1e6
    };
    for (measured, expected) in [
        (p99(&step(&record, "three").response), waits[197]),
        (
            p99(record.measures.times(TimeMeasure::Journey)),
            waits[197] + 22.0,
        ),
    ] {
        assert!(
            (measured / expected - 1.0).abs() < 0.01,
            "p99 {measured} ms, not {expected} ms"
        );
    }
    for name in ["one", "two"] {
        let one = mean(&step(&record, name).response);
        assert!(one < 1.2, "{name}: {one} ms");
    }
}
