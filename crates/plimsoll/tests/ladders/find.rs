//! The max rate of a real server whose capacity follows from Little's law.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use plimsoll_model::runs::run::Run;
use plimsoll_model::search::{LimitingFactor, SearchRecord};

const PLIMSOLL: &str = env!("CARGO_BIN_EXE_plimsoll");

/// A server of ours, stopped when dropped.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(arguments: &[&str]) -> Server {
        let mut child = Command::new(PLIMSOLL)
            .arg("serve")
            .args(arguments)
            .args(["--listen", "127.0.0.1:0", "--json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let said: serde_json::Value = serde_json::from_str(&line).unwrap();
        Server {
            child,
            address: said["address"].as_str().unwrap().to_owned(),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn plan(address: &str) -> String {
    format!(
        r#"
name = "score, fifty at a time"
target = "grpc://{address}"
[call.grpc]
method = "score.ScoreService/GetScore"
message = {{ json = "[0.1, 0.2]" }}
[load]
rate = "70/s"
[objective]
"p90" = "< 600ms"
[find]
precision = "4%"
probe = "1s"
trial = "2s"
confirm = "5s"
budget = "100s"
curve = false
"#
    )
}

#[test]
fn max_rate_matches_littles_law() {
    // 50 concurrent calls of 500 ms each: 100 per second.
    let server = Server::start(&[
        "score",
        "--delay",
        "500ms",
        "--max-streams",
        "50",
        "--workers",
        "1",
    ]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("plan.toml");
    std::fs::write(&file, plan(&server.address)).unwrap();
    let out = dir.path().join("search");
    let output = Command::new(PLIMSOLL)
        .arg("find")
        .arg(&file)
        .arg("--out")
        .arg(&out)
        .output()
        .unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let record = SearchRecord::load(&out).unwrap();
    let found = record.finding.as_ref().unwrap();
    let line = found.line_per_s.unwrap();
    assert!(line <= 105.0, "{line}/s\n{stdout}\n{stderr}");
    if matches!(found.limit, LimitingFactor::Generator { .. }) {
        // A machine too busy to send in time must report that and not blame the server.
        assert_eq!(output.status.code(), Some(90), "{stdout}\n{stderr}");
        assert!(
            stdout.contains("the generator was too late to tell"),
            "{stdout}"
        );
    } else {
        // A busy machine answers later, so the result is lower, never higher. The precision of
        // searches is tested in simulated time (`plimsoll-model/tests/integration/search_queue.rs`).
        assert!(line >= 60.0, "{line}/s\n{stdout}\n{stderr}");
        // Either objective may end the search: at 102/s the queue grows by 2 per second, and in a
        // trial of 2 s no call waits longer than the 100 ms that the objective allows; at 110/s
        // they do.
        let ends = matches!(
            found.limit,
            LimitingFactor::Objective { .. } | LimitingFactor::Queue
        );
        assert!(ends, "{stdout}");
        let confirmed = if found.confirmed { 0 } else { 90 };
        assert_eq!(output.status.code(), Some(confirmed), "{stdout}");
        assert!(
            stdout.contains("is the load line (p90 < 600ms)"),
            "{stdout}"
        );
    }
    // Every trial is a run that can be read again.
    for trial in &record.trials {
        let run =
            plimsoll_model::runs::run::Run::load(&out.join(trial.run.as_ref().unwrap())).unwrap();
        assert!(run.summary.count_check.matches);
        assert_eq!(run.summary.total.achieved_per_s, trial.achieved_per_s);
    }
    // The budget limits when the last trial may begin; a busy machine takes longer for it.
    let before_last = record
        .trials
        .split_last()
        .map_or(&[][..], |(_, before)| before);
    let took: f64 = before_last.iter().map(|t| t.took_s).sum();
    assert!(took <= 100.0, "{took} s");
}

#[test]
fn max_rate_of_model_matches_its_slots() {
    // 16 concurrent answers of 20 tokens at 25 ms: 32 per second.
    let server = Server::start(&[
        "llm",
        "--slots",
        "16",
        "--token-delay",
        "25ms",
        "--tokens",
        "20",
    ]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("plan.toml");
    let plan = format!(
        r#"
name = "model, sixteen at a time"
target = "http://{}"
[call.http]
method = "POST"
path = "/v1/chat/completions"
body = '{{"model": "m", "stream": true, "messages": [{{"role": "user", "content": "{{{{seq}}}}"}}]}}'
stream = "openai"
[load]
rate = "20/s"
connections = 400
[objective]
"ttft.p90" = "< 500ms"
[find]
precision = "10%"
probe = "1s"
trial = "4s"
confirm = "5s"
budget = "90s"
curve = false
"#,
        server.address
    );
    std::fs::write(&file, plan).unwrap();
    let out = dir.path().join("search");
    let mut find = Command::new(PLIMSOLL);
    let output = find
        .arg("find")
        .arg(&file)
        .arg("--out")
        .arg(&out)
        .output()
        .unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let record = SearchRecord::load(&out).unwrap_or_else(|e| panic!("{e}: {stdout}\n{stderr}"));
    let found = record.finding.as_ref().unwrap();
    let line = found.line_per_s.unwrap();
    // In a trial of 4 s a queue of half a second holds 16 calls, 4 per second above the capacity.
    assert!(line <= 38.0, "{line}/s\n{stdout}\n{stderr}");
    let sentence = match found.limit {
        // A machine too busy to send in time reports that instead.
        LimitingFactor::Generator { .. } => "Meets ttft.p90 < 500ms up to",
        _ => "(ttft.p90 < 500ms)",
    };
    assert!(stdout.contains(sentence), "{stdout}");
    // A busy machine answers later: the result is lower, and its range shows the scatter of the
    // trials.
    let high = found.high_per_s;
    assert!(
        high.is_none_or(|high| high >= 16.0),
        "{high:?}\n{stdout}\n{stderr}"
    );
}

/// Searches the number of users that the plan's server serves, and returns the record, the exit code and the output.
fn find_users(plan: &str) -> (SearchRecord, Option<i32>, String) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("plan.toml");
    std::fs::write(&file, plan).unwrap();
    let out = dir.path().join("search");
    let output = Command::new(PLIMSOLL)
        .arg("find")
        .arg(&file)
        .args(["--users", "1..120", "--out"])
        .arg(&out)
        .output()
        .unwrap();
    let mut said = String::from_utf8(output.stdout).unwrap();
    said += &String::from_utf8(output.stderr).unwrap();
    let record = SearchRecord::load(&out).unwrap_or_else(|e| panic!("{e}: {said}"));
    let json = std::fs::read_to_string(out.join("search.json")).unwrap();
    for key in ["\"users\"", "\"line_users\"", "\"most_users\""] {
        assert!(json.contains(key), "{key}: {json}");
    }
    assert!(!json.contains("rate_per_s"), "{json}");
    for trial in &record.trials {
        let run = Run::load(&out.join(trial.run.as_ref().unwrap())).unwrap();
        assert!(run.summary.count_check.matches);
        let clients = format!("clients = {}", trial.rate_per_s);
        let saved =
            std::fs::read_to_string(out.join(trial.run.as_ref().unwrap()).join("plan.toml"));
        assert!(saved.unwrap().contains(&clients), "{clients}");
    }
    (record, output.status.code(), said)
}

/// The server serves 20 requests at a time, each for 100 ms. By Little's law, N users wait N / 200 s for each answer, so
/// fewer than 30 get it within 150 ms.
#[test]
fn greatest_number_of_users_matches_littles_law() {
    let law_dir = tempfile::tempdir().unwrap();
    let law = law_dir.path().join("law.toml");
    let text =
        "law = \"capacity\"\nplaces = 20\nservice = { law = \"constant\", delay = \"100ms\" }\n";
    std::fs::write(&law, text).unwrap();
    let envelope = law_dir.path().join("envelope.jsonl");
    let server = Server::start(&[
        "known",
        "--law",
        law.to_str().unwrap(),
        "--envelope",
        envelope.to_str().unwrap(),
    ]);
    let calls = "[call.http]\n[load]\nrate = \"7/s\"\narrivals = \"poisson\"\n";
    let journeys = "[[steps]]\nname = \"one\"\n[[steps]]\nname = \"two\"\n[load]\nclients = 4\n";
    for (load, first) in [(calls, 10.0), (journeys, 4.0)] {
        let (record, code, said) = find_users(&format!(
            "target = \"http://{}\"\n{load}[objective]\np90 = \"< 150ms\"\n[find]\nprobe = \"1s\"\n\
             trial = \"2s\"\nconfirm = \"4s\"\nbudget = \"60s\"\ncurve = false\n",
            server.address
        ));
        assert_eq!(record.trials[0].rate_per_s, first, "{said}");
        let found = record.finding.as_ref().unwrap();
        let line = found.line_per_s.unwrap();
        // A busy machine answers later, so the line is lower, never higher.
        assert!((10.0..30.0).contains(&line), "{line}: {said}");
        if !matches!(found.limit, LimitingFactor::Generator { .. }) {
            let confirmed = if found.confirmed { 0 } else { 90 };
            assert_eq!(code, Some(confirmed), "{said}");
            let sentence = format!("Carries {line} users with p90 < 150ms.");
            assert!(said.contains(&sentence), "{said}");
        }
    }
}

#[test]
fn users_of_model_match_its_slots() {
    // Eight answers at a time, each of 10 tokens at 20 ms: the ninth user waits for a slot, and twelve wait 100 ms.
    let server = Server::start(&[
        "llm",
        "--slots",
        "8",
        "--token-delay",
        "20ms",
        "--tokens",
        "10",
    ]);
    let (record, _, said) = find_users(&format!(
        "target = \"http://{}\"\n[call.http]\nmethod = \"POST\"\npath = \"/v1/chat/completions\"\n\
         body = '{{\"model\": \"m\", \"stream\": true, \"messages\": [{{\"role\": \"user\", \"content\": \"x\"}}]}}'\n\
         stream = \"openai\"\n[load]\nclients = 2\n[objective]\n\"ttft.p90\" = \"< 100ms\"\n\
         [find]\nprobe = \"1s\"\ntrial = \"2s\"\nconfirm = \"3s\"\nbudget = \"40s\"\ncurve = false\n",
        server.address
    ));
    let line = record.finding.as_ref().and_then(|found| found.line_per_s);
    assert!(
        line.is_some_and(|line| (1.0..=13.0).contains(&line)),
        "{line:?}: {said}"
    );
}

#[test]
fn search_beyond_rows_of_users_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("users.csv", "name\nann\nbob\ncyd\n");
    write(
        "plan.toml",
        "target = \"http://127.0.0.1:1\"\n[rows]\nfile = \"users.csv\"\norder = \"client\"\n\
         [[steps]]\nname = \"one\"\npath = \"/{{row.name}}\"\n\
         [load]\nclients = 2\n[objective]\np90 = \"< 1s\"\n",
    );
    let find = |users: &str| {
        let output = Command::new(PLIMSOLL)
            .args(["find", "plan.toml", "--dry-run", "--users", users])
            .current_dir(dir.path())
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap().replace('│', " ");
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        (output.status.code(), said)
    };
    let (code, said) = find("1..3");
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = find("1..9");
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("only 3 rows for 9 clients"), "{said}");
    assert!(said.contains("the search goes up to 9 users"), "{said}");
}

#[test]
fn invalid_search_is_rejected_before_load() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("plan.toml");
    let whole = plan("127.0.0.1:1");
    let refused = |text: String, flags: &[&str]| {
        std::fs::write(&file, text).unwrap();
        let output = Command::new(PLIMSOLL)
            .arg("find")
            .arg(&file)
            .args(flags)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    let none = whole.replace("\"p90\" = \"< 600ms\"", "");
    assert!(refused(none, &[]).contains("no objective"));
    let closed = whole.replace("rate = \"70/s\"", "clients = 7");
    assert!(refused(closed, &[]).contains("--users 1..500"));
    let users = refused(whole.clone(), &["--users", "9..3"]);
    assert!(
        users.contains("find.users") && users.contains("1..500"),
        "{users}"
    );
    let both = refused(whole.clone(), &["--users", "1..9", "--most", "5/s"]);
    assert!(both.contains("find.most"), "{both}");
    let precise = whole.replace("\"4%\"", "\"4\"");
    assert!(refused(precise, &[]).contains("find.precision"));
    let typo = whole.replace("budget", "bugdet");
    assert!(refused(typo, &[]).contains("did you mean `budget`?"));
    assert!(refused(whole, &["--duration", "5s"]).contains("--trial"));
}
