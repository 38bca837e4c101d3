//! Simulation of journeys with a loop over several steps, on a server that gives each iteration an id, refuses some
//! requests, and says how often it wants to be asked.

use std::collections::BTreeMap;
use std::time::Duration;

use plimsoll_engine::transport::network::simulated::{
    ServerAction, SimulatedPeerId, SimulatedServer,
};
use plimsoll_model::Time;
use plimsoll_model::metrics::measure::{Count, TimeMeasure};
use plimsoll_model::records::record::StageRecord;

use super::draw;
use super::journeys::{plan, run};

/// What the server knows of a user, who is a connection.
#[derive(Default)]
struct UserState {
    received: Vec<u8>,
    iterations: u64,
    id: u64,
    /// Whether the last answer said that there is more.
    has_more: bool,
    /// Whether a request of the current iteration was refused.
    was_refused: bool,
    /// The requests of the current iteration after the first one.
    requests: Vec<String>,
}

/// A server whose answers take a fixed time.
#[derive(Default)]
struct Queries {
    seed: u64,
    takes: Duration,
    /// The share of reads that are refused with 503, in per cent.
    refused: u64,
    /// The iterations that the plan asks for; `None`: as long as there is more.
    repeat: Option<u64>,
    /// Whether users go on after a refused read.
    continues: bool,
    asked: u64,
    users: BTreeMap<SimulatedPeerId, UserState>,
    answers: BTreeMap<SimulatedPeerId, String>,
    problems: Vec<String>,
}

impl Queries {
    /// Checks the iteration that is over.
    fn check_iteration(&mut self, peer: SimulatedPeerId, path: &str) {
        let user = &self.users[&peer];
        let kinds: Vec<&str> = user.requests.iter().map(String::as_str).collect();
        let is_whole = matches!(kinds[..], ["read", "like" | "skip"]);
        if user.iterations > 0 && !is_whole {
            self.problems.push(format!("{path} after {kinds:?}"));
        }
    }

    fn answer(&mut self, peer: SimulatedPeerId, path: &str) -> (u16, String) {
        let (kind, id) = path[1..].split_once('/').unwrap_or((&path[1..], ""));
        if let "ask" | "out" = kind {
            self.check_iteration(peer, path);
        }
        let user = self.users.entry(peer).or_default();
        let is_wanted = match self.repeat {
            Some(repeat) => user.iterations < repeat,
            None => user.iterations == 0 || user.has_more && !user.was_refused,
        };
        let is_over = !is_wanted || self.repeat.is_none() && user.iterations == 100;
        match kind {
            "ask" => {
                if is_over {
                    let problem = format!("asked again after {} iterations", user.iterations);
                    self.problems.push(problem);
                }
                self.asked += 1;
                user.iterations += 1;
                user.id = self.asked;
                user.has_more = draw(self.seed, self.asked << 8 | 1, 0, 99) < 70;
                user.was_refused = false;
                user.requests.clear();
                let more = if user.has_more { "yes" } else { "" };
                return (200, format!(r#"{{"id":{},"more":"{more}"}}"#, user.id));
            }
            "read" | "like" | "skip" if id.parse() != Ok(user.id) => {
                self.problems.push(format!("{path}, not {}", user.id));
            }
            "read" => {
                user.requests.push("read".to_owned());
                if draw(self.seed, user.id << 8 | 2, 0, 99) < self.refused {
                    user.was_refused = true;
                    return (503, "{}".to_owned());
                }
            }
            "out" if !is_over => {
                let problem = format!("left after {} iterations", user.iterations);
                self.problems.push(problem);
            }
            "like" | "skip" => user.requests.push(kind.to_owned()),
            _ => {}
        }
        if user.was_refused && kind == "out" && !self.continues {
            self.problems.push("went on after a refusal".to_owned());
        }
        (200, "{}".to_owned())
    }
}

impl SimulatedServer for Queries {
    fn on_open(&mut self, peer: SimulatedPeerId, _: Time, _: &mut Vec<ServerAction>) {
        self.users.insert(peer, UserState::default());
    }

    fn on_receive(
        &mut self,
        peer: SimulatedPeerId,
        bytes: &[u8],
        _: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        let received = &mut self.users.entry(peer).or_default().received;
        received.extend_from_slice(bytes);
        if !received.ends_with(b"\r\n\r\n") {
            return;
        }
        let head = String::from_utf8(std::mem::take(received)).unwrap();
        let path = head.split(' ').nth(1).unwrap_or_default();
        let (status, body) = self.answer(peer, path);
        let length = body.len();
        let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n\r\n{body}");
        self.answers.insert(peer, answer);
        actions.push(ServerAction::Timer {
            after: self.takes,
            tag: 0,
        });
    }

    fn on_timer(
        &mut self,
        peer: SimulatedPeerId,
        _: u64,
        _: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        if let Some(answer) = self.answers.remove(&peer) {
            actions.push(ServerAction::Send(answer.into_bytes()));
        }
    }
}

const STEPS: &str = r#"
target = "http://h:1"
[[steps]]
name = "in"
path = "/in"
[[steps]]
name = "ask"
loop = { name = "query", repeat = REPEAT }
path = "/ask"
pause = "3ms"
take.id = "/id"
take.more = { json = "/more", optional = true }
[[steps]]
name = "read"
loop = "query"
path = "/read/{{id}}"
pause = "2ms"
on_failure = "RULE"
[[steps]]
name = "like"
loop = "query"
weight = 1
path = "/like/{{id}}"
[[steps]]
name = "skip"
loop = "query"
weight = 2
path = "/skip/{{id}}"
[[steps]]
name = "out"
path = "/out"
"#;

/// Returns the load of so many users, and the load section of a plan.
fn users_and_load(seed: u64) -> (u64, String) {
    let users = draw(seed, 2, 1, 15);
    let load = if draw(seed, 3, 0, 1) == 0 {
        let clients = draw(seed, 4, 1, users);
        format!("[load]\nclients = {clients}\ncalls = {users}\n")
    } else {
        format!("[load]\nrate = \"500/s\"\narrivals = \"poisson\"\ncalls = {users}\n")
    };
    (users, load)
}

fn mean_ms(times: &plimsoll_model::records::record::TimeHistogram) -> f64 {
    times.histogram().map_or(0.0, |times| times.mean() / 1e6)
}

/// Checks the counts of all steps: `continues` says whether users go on after a refused read.
fn check_counts(seed: u64, users: u64, record: &StageRecord, server: &Queries) -> (u64, u64) {
    let of = |name: &str| {
        let found = record.steps.iter().find(|step| step.name == name);
        found.map_or((0, 0), |step| {
            assert_eq!(step.due, step.outcomes.total(), "seed {seed}: {name}");
            (step.due, step.ok_calls())
        })
    };
    assert_eq!(record.due, record.ended_calls(), "seed {seed}");
    let names = ["in", "ask", "read", "like", "skip", "out"];
    let due: u64 = names.iter().map(|name| of(name).0).sum();
    assert_eq!(record.due, due, "seed {seed}");
    let count = |count| record.measures.counter(count);
    let (ok, failed) = (count(Count::UsersOk), count(Count::UsersFailed));
    assert_eq!(ok + failed, users, "seed {seed}");
    assert_eq!(of("in"), (users, users), "seed {seed}");
    assert_eq!(of("ask"), (server.asked, server.asked), "seed {seed}");
    let (reads, reads_ok) = of("read");
    let choices = of("like").1 + of("skip").1;
    assert_eq!(reads, server.asked, "seed {seed}");
    if server.continues {
        assert_eq!(choices, reads, "seed {seed}");
        assert_eq!(of("out"), (users, users), "seed {seed}");
        assert!(failed <= reads - reads_ok, "seed {seed}");
    } else {
        assert_eq!(choices, reads_ok, "seed {seed}");
        assert_eq!(of("out"), (ok, ok), "seed {seed}");
        assert_eq!(failed, reads - reads_ok, "seed {seed}");
    }
    if let Some(repeat) = server.repeat.filter(|_| server.continues) {
        assert_eq!(reads, users * repeat, "seed {seed}");
    }
    (ok, failed)
}

#[test]
fn every_iteration_is_accounted_for() {
    let (mut ok, mut failed, mut iterations, mut likes) = (0, 0, 0, 0);
    for seed in 0..1_000 {
        let (users, load) = users_and_load(seed);
        let repeat = (draw(seed, 5, 0, 1) == 0).then(|| draw(seed, 6, 1, 8));
        let continues = draw(seed, 7, 0, 1) == 0;
        let text = STEPS
            .replace("RULE", if continues { "continue" } else { "end" })
            .replace(
                "REPEAT",
                &repeat.map_or("\"while more\"".to_owned(), |repeat| repeat.to_string()),
            );
        let plan = plan(&format!("seed = {seed}\n{text}{load}"));
        let mut server = Queries {
            seed,
            takes: Duration::from_micros(draw(seed, 8, 1, 3_000)),
            refused: if seed % 3 == 0 {
                0
            } else {
                draw(seed, 9, 0, 20)
            },
            repeat,
            continues,
            ..Queries::default()
        };
        let record = run(&plan, seed, &mut server);
        assert_eq!(server.problems, [] as [String; 0], "seed {seed}");
        let (users_ok, users_failed) = check_counts(seed, users, &record, &server);
        (ok, failed) = (ok + users_ok, failed + users_failed);
        (iterations, likes) = (iterations + server.asked, likes + step_due(&record, "like"));
        if server.refused == 0 {
            // An iteration is three requests and two pauses; connecting and two further requests frame the loop. Bytes
            // need 50 µs from one end to the other.
            let request = server.takes.as_secs_f64() * 1e3 + 0.1;
            let frame = 0.1 + 2.0 * request;
            let all = users as f64 * frame + server.asked as f64 * (3.0 * request + 5.0);
            let journey = mean_ms(record.measures.times(TimeMeasure::Journey));
            let expected = all / users as f64;
            assert!(
                (journey / expected - 1.0).abs() < 0.01,
                "seed {seed}: {journey} ms, not {expected} ms"
            );
        }
    }
    assert!(ok > 1_000 && failed > 1_000, "{ok} {failed}");
    // Each iteration draws its own branch.
    let share = likes as f64 / iterations as f64;
    assert!((0.28..0.38).contains(&share), "{share}");
}

fn step_due(record: &StageRecord, name: &str) -> u64 {
    let found = record.steps.iter().find(|step| step.name == name);
    found.map_or(0, |step| step.due)
}
