//! Plans with lanes: several kinds of calls and protocols on one schedule.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::support;

use std::collections::BTreeSet;

use plimsoll_model::runs::lanes::LanesRecord;
use plimsoll_model::runs::run::Run;
use support::{Place, stderr_of};

fn plan(place: &Place, target: &str, rest: &str) {
    let text = format!(
        "name = \"a shop\"\ntarget = \"{target}\"\n\
         [call.grpc]\nmethod = \"score.ScoreService/GetScore\"\nmessage = {{ json = \"[0.1]\" }}\n\
         [load]\nrate = \"200/s\"\nduration = \"3s\"\n{rest}"
    );
    std::fs::write(place.path("plan.toml"), text).unwrap();
}

/// Arrivals are distributed by weight, and none is lost or sent twice; the lanes have their own
/// protocols, connections and objectives.
#[test]
fn lanes_share_schedule_by_weight() {
    let place = Place::new();
    place.certificates();
    let score = place.serve(&["score", "--delay", "0s"]);
    let bolt = place.serve(&["bolt"]);
    plan(
        &place,
        &score.plaintext(),
        &format!(
            "[lanes.browse]\nweight = 7\n\
             [lanes.checkout]\nweight = 2\nload.connections = 3\nobjective.p50 = \"< 1us\"\nobjective.errors = \"< 100%\"\n\
             [lanes.rpc]\ntarget = \"sofa://127.0.0.1:{}\"\ncall.bolt = {{ service = \"com.alipay.test.TestService:1.0\", method = \"echoStr\", arguments = '[\"hello\"]' }}\n",
            bolt.port
        ),
    );
    let output = place.run(&["run", "plan.toml", "--out", "shop"]);
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    // On a busy machine the lane's objective may be inconclusive.
    let row = out.lines().find(|line| line.starts_with("checkout "));
    let (code, verdict) = match row.and_then(|row| row.split_whitespace().last()) {
        Some("fail") => (99, "FAIL"),
        Some("inconclusive") => (90, "INCONCLUSIVE"),
        _ => panic!("no verdict: {out}"),
    };
    assert_eq!(
        output.status.code(),
        Some(code),
        "{out}\n{}",
        stderr_of(&output)
    );
    let record = LanesRecord::load(&place.path("shop")).unwrap();
    let runs: Vec<Run> = record
        .run_dirs(&place.path("shop"))
        .unwrap()
        .iter()
        .map(|dir| Run::load(dir).unwrap())
        .collect();
    let due: Vec<u64> = runs.iter().map(|run| run.summary.total.due).collect();
    assert_eq!(due, [420, 120, 60], "{out}");
    // Each lane shows its own settings, not those of all lanes.
    let asked: Vec<Option<f64>> = runs
        .iter()
        .map(|run| run.header.planned_stages[0].rate_from_per_s)
        .collect();
    assert_eq!(asked, [Some(140.0), Some(40.0), Some(20.0)]);
    let protocols: Vec<&str> = runs
        .iter()
        .filter_map(|run| run.header.protocol.as_deref())
        .collect();
    assert_eq!(protocols, ["grpc", "grpc", "bolt"]);
    assert!(
        runs.iter().all(|run| run.summary.total.errors == 0),
        "{out}"
    );
    assert_eq!(runs[1].summary.total.connections_open_max, 3);
    for words in ["all lanes", "browse", "600 calls were scheduled", verdict] {
        assert!(out.contains(words), "{words}: {out}");
    }
    // A report of the directory covers its lanes.
    let again = place.expect(0, &["report", "shop"]);
    assert!(again.contains("600 calls were scheduled"), "{again}");
    let page = place.read("shop/report.html");
    assert!(page.contains("checkout") && page.contains("rpc"));
    for written in [
        page,
        place.expect(0, &["report", "shop", "--markdown", "-"]),
    ] {
        assert!(written.contains("600 calls were scheduled"), "{written}");
        assert!(written.contains("all lanes"), "{written}");
    }
    let json = place.expect(0, &["report", "shop", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["runs"].as_array().map(Vec::len), Some(3));
    assert_eq!(json["lanes"]["lanes"][0]["weight"], 7);
    let junit = place.expect(0, &["report", "shop", "--junit", "-"]);
    assert!(junit.contains("checkout"), "{junit}");
    // Three lanes, one of which has two objectives.
    assert_eq!(junit_cases(&junit).len(), 5, "{junit}");
}

/// Returns the class names and names of a document's test cases, which must be distinct.
fn junit_cases(junit: &str) -> BTreeSet<&str> {
    let mut cases = BTreeSet::new();
    for line in junit.lines() {
        let Some(case) = line.trim().strip_prefix("<testcase ") else {
            continue;
        };
        let names = &case[..case.find(" time=").unwrap()];
        assert!(cases.insert(names), "twice: {names}\n{junit}");
    }
    cases
}

/// Many JUnit readers show only one of several test cases with the same class name and name.
#[test]
fn junit_cases_of_equal_runs_differ() {
    let place = Place::new();
    let score = place.serve(&["score", "--delay", "0s"]);
    let objectives =
        "[objective]\n\"errors\" = \"< 50%\"\n\"p50\" = \"< 10s\"\n\"p99\" = \"< 10s\"\n";
    for file in ["a.toml", "b.toml"] {
        plan(&place, &score.plaintext(), objectives);
        let text = place.read("plan.toml").replace("200/s", "50/s");
        let text = text.replace("3s", "1s").replace("name = \"a shop\"\n", "");
        std::fs::write(place.path(file), text).unwrap();
    }
    let output = place.run(&["run", "a.toml", "b.toml", "--junit", "junit.xml"]);
    let said = stderr_of(&output);
    let junit = place.read("junit.xml");
    // Each lane has its objectives and its validity.
    assert_eq!(junit_cases(&junit).len(), 8, "{junit}\n{said}");
}

#[test]
fn invalid_lane_is_reported_with_key() {
    let place = Place::new();
    for (lanes, words) in [
        (
            "[lanes.a]\nload.rate = \"5/s\"\n[lanes.b]\n",
            "lanes.a.load.rate",
        ),
        ("[lanes.a]\n", "2 to 16"),
        (
            "[lanes.a]\nload.conections = 5\n[lanes.b]\n",
            "lanes.a.load.conections",
        ),
    ] {
        plan(&place, "grpc://127.0.0.1:1", lanes);
        let output = place.run(&["run", "plan.toml"]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr_of(&output).contains(words), "{}", stderr_of(&output));
    }
    plan(
        &place,
        "grpc://127.0.0.1:1",
        "[lanes.a]\n[lanes.\"b/../../c\"]\n",
    );
    let output = place.run(&["run", "plan.toml", "--out", "shop"]);
    assert!(
        stderr_of(&output).contains("is not a valid lane name"),
        "{}",
        stderr_of(&output)
    );
    assert!(!place.path("shop").exists() && !place.path("c").exists());
    plan(&place, "grpc://127.0.0.1:1", "[lanes.a]\n[lanes.b]\n");
    let shown = place.expect(0, &["run", "plan.toml", "--dry-run"]);
    assert!(shown.contains("[lanes.a]"), "{shown}");
    let output = place.run(&["find", "plan.toml"]);
    assert!(
        stderr_of(&output).contains("only `plimsoll run` supports lanes"),
        "{}",
        stderr_of(&output)
    );
}

#[test]
fn unreachable_lane_target_ends_all_lanes() {
    let place = Place::new();
    let score = place.serve(&["score", "--delay", "0s"]);
    plan(
        &place,
        &score.plaintext(),
        "[lanes.a]\n[lanes.b]\ntarget = \"grpc://127.0.0.1:1\"\n",
    );
    let output = place.run(&["run", "plan.toml", "--out", "shop"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        stderr_of(&output).contains("127.0.0.1:1"),
        "{}",
        stderr_of(&output)
    );
}

/// Each arrival of a journey's lane is a user, who makes all steps.
#[test]
fn journeys_share_arrivals_with_calls() {
    let place = Place::new();
    let server = place.serve(&["http"]);
    let text = format!(
        "target = \"http://{}\"\n[load]\nrate = \"200/s\"\nduration = \"1s\"\n\
         [lanes.page]\nweight = 3\ncall.http.path = \"/bytes/10\"\n\
         [lanes.shop]\nload.deadline = \"5s\"\n\
         [[lanes.shop.steps]]\nname = \"log in\"\nmethod = \"POST\"\npath = \"/echo\"\n\
         body = '{{\"token\": \"t-{{{{uuid}}}}\"}}'\ntake.token = \"/token\"\n\
         [[lanes.shop.steps]]\nname = \"look\"\npath = \"/bytes/10?of={{{{token}}}}\"\n\
         loop = {{ name = \"looks\", repeat = 2 }}\n",
        server.address()
    );
    std::fs::write(place.path("plan.toml"), text).unwrap();
    let out = place.expect(0, &["run", "plan.toml", "--out", "shop"]);
    let page = place.run_json("shop/lane-page");
    assert_eq!(page["total"]["due"], 150, "{page}");
    assert_eq!(page["total"]["ok"], 150, "{page}");
    let shop = place.run_json("shop/lane-shop");
    assert_eq!(shop["total"]["due"], 150, "{shop}");
    assert_eq!(shop["total"]["ok"], 150, "{shop}");
    assert_eq!(shop["total"]["measures"]["counts"]["users_ok"], 50);
    let steps = shop["total"]["steps"].as_array().unwrap();
    let due: Vec<Option<u64>> = steps.iter().map(|step| step["due"].as_u64()).collect();
    assert_eq!(due, [Some(50), Some(100)], "{shop}");
    assert!(out.contains("log in") && out.contains("page"), "{out}");
    // Sessions and conversations have other arrivals than calls.
    let plan = std::fs::read_to_string(place.path("plan.toml")).unwrap();
    let plan = format!(
        "{plan}\n[lanes.talk]\ncall.session = {{ socket = \"ws://127.0.0.1:1\" }}\ntarget = \"session://127.0.0.1:1\"\n"
    );
    std::fs::write(place.path("plan.toml"), plan).unwrap();
    let refused = place.run(&["run", "plan.toml", "--dry-run"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr_of(&refused).contains("lanes.talk"));
}
