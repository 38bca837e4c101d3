//! Searches for the number of sessions that a stack carries.

use serde_json::Value;

use super::*;

#[test]
fn find_searches_number_of_sessions() {
    let place = Place::new();
    let stack = Stack::start(&place);
    let plan = format!(
        r#"
target = "session://{}"
[call.session]
socket = "ws://{}"
queries = 2
[objective]
"ttft.p90" = "< 60s"
[find]
users = "1..4"
probe = "500ms"
trial = "1s"
confirm = "1s"
budget = "20s"
curve = false
"#,
        stack.api, stack.gateway
    );
    fs::write(place.path("plan.toml"), plan).expect("a writable folder");
    let found = place.run(&["find", "plan.toml", "--out", "search"]);
    let said = String::from_utf8_lossy(&found.stdout).into_owned();
    // A busy machine may leave too little time for a confirmation.
    assert!(matches!(found.status.code(), Some(0 | 90)), "{said}");
    assert!(said.contains("users"), "{said}");
    let record: Value = serde_json::from_str(&place.read("search/search.json")).expect("JSON");
    assert_eq!(record["goal"]["variable"], "users", "{record}");
    let trials = record["trials"].as_array().expect("a list");
    assert!(!trials.is_empty(), "{record}");
    for trial in trials {
        let run = format!("search/{}", trial["run"].as_str().expect("a run"));
        let users = trial["users"].as_f64().expect("a number");
        let plan = place.read(&format!("{run}/plan.toml"));
        assert!(plan.contains(&format!("clients = {users}\n")), "{plan}");
        // Each session has two connections: one to the API, and its socket.
        let run = place.run_json(&run);
        assert_eq!(run["connections"].as_f64(), Some(2.0 * users), "{run}");
        assert_eq!(run["count_check"]["matches"], true, "{run}");
    }
}
