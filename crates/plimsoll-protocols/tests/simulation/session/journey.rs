//! The same sessions written as steps of a journey, against the same stack.

use std::io;
use std::path::Path;

use plimsoll_engine::script::user::UserScripts;
use plimsoll_model::Plan;
use plimsoll_model::spec::{self, ResolveContext};
use plimsoll_protocols::http::HttpCall;
use plimsoll_protocols::journey::JourneyScenario;

use super::*;

const STEPS: &str = r#"
target = "http://127.0.0.1:1"
seed = SEED
[[steps]]
name = "create"
method = "POST"
path = "/session/create"
take = { session = "/session_id", token = "/token" }
[[steps]]
name = "open"
target = "ws://127.0.0.1:2"
path = "/agent/ws/{{session}}"
headers = { authorization = "Bearer {{token}}" }
reconnects = 20
reconnect_pause = "PAUSEms"
reconnect_pause_most = "1s"
[[steps]]
name = "run"
loop = { name = "query", repeat = QUERIES }
method = "POST"
path = "/session/{{session}}/run"
body = '{"query": "?"}'
take = { tokens = "/tokens" }
[[steps]]
name = "read"
loop = "query"
target = "ws://127.0.0.1:2"
tokens = "{{tokens}}"
[[steps]]
name = "close"
method = "POST"
path = "/session/{{session}}/close"
[load]
clients = SESSIONS
calls = SESSIONS
deadline = "60s"
"#;

/// A machine without files and variables.
struct NoSurroundings;

impl ResolveContext for NoSurroundings {
    fn env_variable(&self, _: &str) -> Option<String> {
        None
    }
    fn read(&self, _: &Path) -> io::Result<String> {
        Err(io::ErrorKind::NotFound.into())
    }
    fn read_bytes(&self, _: &Path) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::NotFound.into())
    }
    fn run_command(&self, _: &str) -> Result<String, String> {
        Err("no commands here".to_owned())
    }
}

fn plan(seed: u64, sessions: u64, queries: u64) -> Plan {
    plimsoll_protocols::registry::register_protocols();
    let text = STEPS
        .replace("SEED", &seed.to_string())
        .replace("PAUSE", &choose(seed, 12, 1, 300).to_string())
        .replace("QUERIES", &queries.to_string())
        .replace("SESSIONS", &sessions.to_string());
    let spec = spec::read(&text).unwrap();
    spec::resolve(&spec, &NoSurroundings).unwrap()
}

fn run(plan: &Plan, seed: u64, stack: &mut Stack) -> StageRecord {
    let call: &HttpCall = plan.call.downcast_ref().unwrap();
    let journey = call.journey.as_ref().unwrap();
    let steps = journey.prepare(&["api", "sockets"], &plan.load).unwrap();
    let scenario = JourneyScenario::new(Arc::new((**journey).clone()), steps, seed);
    let sockets = plan.call.other_targets()[0].0.clone();
    let links = vec![(plan.target.clone(), None), (sockets, None)];
    let users = UserScripts::with_links(scenario, links, &plan.load);
    let share = WorkerShare::new(Shard::WHOLE_RUN, Arc::new(plan.load.clone()), seed);
    let mut control = SoleWorkerControl {
        start: Some(Time(1_100_000_000)),
        total: RecordedInterval::default(),
    };
    let weather = NetworkConditions {
        latency_us: 20..=choose(seed, 4, 20, 3_000),
        piece: 1..=usize::try_from(choose(seed, 5, 1, 300)).unwrap(),
        ..NetworkConditions::faultless(seed)
    };
    let network = SimulatedNetwork::new(stack, weather);
    let mut worker = ScriptWorker::new(share, network, Arc::new(users));
    worker.run(Time(1_100_000_000), &mut control).unwrap();
    drop(worker);
    let mut record = StageRecord::default();
    for (_, stage) in control.total.recorded_stages() {
        record.merge(stage);
    }
    record
}

#[test]
fn killed_sockets_of_journeys_lose_no_tokens() {
    let (mut kills, mut reconnects) = (0, 0);
    for seed in seeds() {
        let (sessions, queries) = (choose(seed, 1, 1, 5), choose(seed, 2, 2, 4));
        let mut stack = Stack::new(seed, StackFault::Nothing);
        let record = run(&plan(seed, sessions, queries), seed, &mut stack);
        let context = || format!("SIMULATION_SEED={seed}: {:?}", record.outcomes);
        let calls = sessions * (3 + 2 * queries);
        assert_eq!(
            (record.due, record.ok_calls()),
            (calls, calls),
            "{}",
            context()
        );
        let tokens = sessions * queries * TOKENS;
        assert_eq!(of(&record, Count::TokensReceived), tokens, "{}", context());
        for none in [
            Count::TokensMissing,
            Count::TokensDuplicated,
            Count::TokensOutOfOrder,
            Count::TokensStray,
            Count::HistoryGone,
            Count::UsersFailed,
        ] {
            assert_eq!(of(&record, none), 0, "{}: {}", context(), none.key());
        }
        assert_eq!(of(&record, Count::UsersOk), sessions, "{}", context());
        assert!(
            of(&record, Count::Reconnects) <= stack.kills,
            "{}",
            context()
        );
        let times = record.measures.times(TimeMeasure::Reconnect).len();
        assert_eq!(times, of(&record, Count::Reconnects), "{}", context());
        kills += stack.kills;
        reconnects += of(&record, Count::Reconnects);
    }
    if std::env::var_os("SIMULATION_SEED").is_none() {
        assert!(kills > 300 && reconnects > 300, "{kills} {reconnects}");
    }
}
