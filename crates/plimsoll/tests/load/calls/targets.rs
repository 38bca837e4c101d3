//! Journeys whose steps go to several targets, each over a connection of its own.

use std::fs;

use serde_json::Value;

use super::support::peers::python;
use super::support::{CLIENT_TLS, Place, SERVER_TLS, Server, stderr_of};

const STEPS: &str = r#"
[[steps]]
name = "begin"
method = "POST"
path = "/echo"
body = '{"id": "{{uuid}}"}'
take.id = "/id"

[[steps]]
name = "log in"
target = "http://ROOMS"
method = "POST"
path = "/login"
body = '{"user": "ada"}'
take = { member = "/member", token = "/token" }

[[steps]]
name = "open"
target = "ws://SOCKETS"
path = "/rooms/{{member}}?token={{token}}"
subprotocol = ["room.v1", "{{token}}"]
headers.authorization = "Bearer {{token}}"
until = { json = "/type", equals = "welcome" }
take.seat = "/seat"

[[steps]]
name = "call"
target = "grpc://ECHO"
method = "grpc.examples.echo.Echo/UnaryEcho"
message = { message = "{{id}} {{seat}}" }
take.said = "/message"

[[steps]]
name = "store"
target = "http://OTHER"
method = "POST"
path = "/echo"
body = '{"said": "{{said}}"}'
take.said = { regex = '"said": "([0-9a-f-]+ [0-9]+)"' }

[[steps]]
name = "say"
target = "ws://SOCKETS"
send = '{"do": "say", "id": {{seat}}, "text": "{{said}}"}'
until = { json = "/id", equals = "{{seat}}" }
expect = "contains:{{id}} {{seat}}"

[[steps]]
name = "call again"
target = "grpc://ECHO"
method = "grpc.examples.echo.Echo/UnaryEcho"
message = { message = "{{said}}" }

[[steps]]
name = "end"
target = "http://OWN"
path = "/bytes/10"
"#;

fn counts(run: &Value) -> Vec<(&str, u64, u64)> {
    let steps = run["total"]["steps"].as_array().expect("a list");
    let each = steps.iter().map(|step| {
        let count = |key: &str| step[key].as_u64().expect("a count");
        let name = step["name"].as_str().expect("a name");
        (name, count("due"), count("ok"))
    });
    each.collect()
}

#[test]
fn users_have_a_connection_to_each_target() {
    let place = Place::new();
    let (own, other) = (place.serve(&["http"]), place.serve(&["http"]));
    let echo = place.serve(&["echo"]);
    let mut rooms = Server::start(&mut python(&place, "ws_rooms.py"));
    let (api, sockets) = (rooms.address(), rooms.next_address());
    let steps = STEPS
        .replace("ROOMS", &api)
        .replace("SOCKETS", &sockets)
        .replace("ECHO", &echo.address())
        .replace("OTHER", &other.address())
        .replace("OWN", &own.address());
    let target = own.address();
    let plan = format!("target = \"http://{target}\"\n[load]\nclients = 4\ncalls = 20\n{steps}");
    fs::write(place.path("targets.toml"), plan).expect("a writable folder");
    place.expect(0, &["run", "targets.toml", "-q", "--out", "run"]);
    let run = place.run_json("run");
    let names = [
        "begin",
        "log in",
        "open",
        "call",
        "store",
        "say",
        "call again",
        "end",
    ];
    let all: Vec<(&str, u64, u64)> = names.iter().map(|name| (*name, 20, 20)).collect();
    assert_eq!(counts(&run), all, "{run}");
    // A step whose target is the plan's own uses the connection of the steps without a target.
    let made = run["total"]["connections"]["opened"].as_u64();
    let made = made.or_else(|| run["total"]["connects"]["count"].as_u64());
    if let Some(made) = made {
        assert_eq!(made, 5 * 20, "{run}");
    }
}

#[test]
fn invalid_targets_name_their_step() {
    let place = Place::new();
    let ports: String = (1..9)
        .map(|port| {
            format!(
                "[[steps]]\nname = \"{port}\"\npath = \"/\"\ntarget = \"http://127.0.0.1:{port}\"\n"
            )
        })
        .collect();
    for (steps, problem) in [
        (
            ports.as_str(),
            "`steps.8.target`: too many targets: the steps of a user have at most 8",
        ),
        (
            "[[steps]]\nname = \"one\"\ntarget = \"http://127.0.0.1:7\"\npath = \"/\"\nversion = \"2\"\n\
             [[steps]]\nname = \"two\"\ntarget = \"http://127.0.0.1:7\"\npath = \"/\"\n",
            "`steps.2.version`: the same for all steps to a target",
        ),
        (
            "[[steps]]\nname = \"one\"\ntarget = \"http://127.0.0.1:9999\"\npath = \"/\"\nversion = \"2\"\n",
            "`steps.1.version`: the same for all steps to the plan's target",
        ),
    ] {
        let plan = format!(
            "target = \"http://127.0.0.1:9999\"\n[load]\nclients = 1\ncalls = 1\n\
             [[steps]]\nname = \"first\"\npath = \"/\"\n{steps}"
        );
        fs::write(place.path("wrong.toml"), plan).expect("a writable folder");
        let refused = place.run(&["run", "wrong.toml", "--dry-run"]);
        let said = stderr_of(&refused);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains(problem), "{problem}\n{said}");
    }
}

/// Only the second target is reached over TLS.
#[test]
fn security_is_recorded_for_each_target() {
    let place = Place::new();
    place.certificates();
    let own = place.serve(&["http"]);
    let other = place.serve(&[&["http"], &SERVER_TLS[..]].concat());
    let secured = format!("https://{}", other.address());
    let plan = format!(
        "target = \"http://{}\"\n[load]\nclients = 2\ncalls = 6\n\
         [[steps]]\nname = \"own\"\npath = \"/\"\n\
         [[steps]]\nname = \"other\"\ntarget = \"{secured}\"\npath = \"/\"\n",
        own.address()
    );
    fs::write(place.path("plan.toml"), plan).expect("a writable folder");
    let words = [&["run", "plan.toml", "-q", "--out", "run"], &CLIENT_TLS[..]].concat();
    place.expect(0, &words);
    let run = place.run_json("run");
    assert_eq!(run["security"], "plaintext", "{run}");
    let others = serde_json::json!([{"target": secured, "security": "tls"}]);
    assert_eq!(run["other_targets"], others, "{run}");
    let report = place.expect(0, &["report", "run"]);
    let words: Vec<&str> = report.split_whitespace().collect();
    let report = words.join(" ");
    assert!(
        report.contains("plaintext to the target, TLS ("),
        "{report}"
    );
    assert!(report.contains(&format!("to {secured}")), "{report}");
}
