//! Binary messages of a WebSocket whose type is described: steps recognise them and take values by their fields.

use std::fs;

use super::errors;
use super::support::peers::python;
use super::support::{Place, Server, stderr_of};

const CHAT: &str = r#"
syntax = "proto3";
package chat.v1;
message Item { string id = 1; }
message Event { string kind = 1; Item item = 2; repeated int32 seat_ids = 3; }
"#;

/// The field `kind` is `done`, the item's `id` is `i-7`, and `seat_ids` are 5 and 9.
const DONE: &str = "0a04646f6e65 12050a03692d37 1a020509";

/// Writes a plan with steps over a socket that sends back what it receives, and the description of its messages.
fn write_plan(place: &Place, address: &str, steps: &str) {
    fs::write(place.path("chat.proto"), CHAT).expect("a writable folder");
    let plan = format!("target = \"ws://{address}\"\n[load]\nclients = 1\ncalls = 4\n{steps}");
    fs::write(place.path("chat.toml"), plan).expect("a writable folder");
}

#[test]
fn fields_of_binary_messages_are_taken() {
    let place = Place::new();
    let server = Server::start(&mut python(&place, "ws_server.py"));
    let steps = format!(
        r#"
[[steps]]
name = "event"
path = "/"
send = ["first", {{ hex = "0a056669727374" }}, {{ hex = "{DONE}" }}]
protobuf = {{ message = "chat.v1.Event", proto = ["chat.proto"] }}
until = {{ json = "/kind", equals = "done" }}
expect = {{ json = "/item/id", equals = "i-7" }}
error = {{ json = "/kind", equals = "failed" }}
take = {{ id = "/item/id", seat = "/seat_ids/1" }}

[[steps]]
name = "use"
send = "{{{{id}}}} {{{{seat}}}}"
protobuf = {{ message = "chat.v1.Event", proto = ["chat.proto"] }}
until = "i-7 9"

[[steps]]
name = "fail"
send = {{ hex = "0a066661696c6564" }}
protobuf = {{ message = "chat.v1.Event", proto = ["chat.proto"] }}
error = {{ json = "/kind", equals = "failed" }}
on_failure = "continue"

[[steps]]
name = "other"
send = {{ hex = "ff" }}
protobuf = {{ message = "chat.v1.Event", proto = ["chat.proto"] }}
take.kind = "/kind"
"#
    );
    write_plan(&place, &server.address(), &steps);
    let ran = place.run(&["run", "chat.toml", "-q", "--out", "run"]);
    assert!(place.path("run").exists(), "{}", stderr_of(&ran));
    let run = place.run_json("run");
    let steps = run["total"]["steps"].as_array().expect("a list");
    let ok: Vec<u64> = steps
        .iter()
        .filter_map(|step| step["ok"].as_u64())
        .collect();
    assert_eq!(ok, [4, 4, 0, 0], "{run}");
    let mut failed = errors(&run);
    failed.sort_unstable();
    assert_eq!(failed, [("EVENT_ERROR", 4), ("TAKE_MISSING", 4)], "{run}");
    let told = run.to_string();
    assert!(
        told.contains("the message is not a chat.v1.Event"),
        "{told}"
    );
}

#[test]
fn wrong_descriptions_and_paths_name_their_key() {
    let place = Place::new();
    let described = "protobuf = { message = \"chat.v1.Event\", proto = [\"chat.proto\"] }\n";
    let path = |rest: &str| format!("{described}{rest}");
    for (step, key, problem) in [
        (
            described.replace("Event", "Evnt"),
            "protobuf.message",
            "message \"chat.v1.Evnt\" is not in chat.proto",
        ),
        (
            described.replace("chat.proto", "gone.proto"),
            "protobuf.proto",
            "gone.proto",
        ),
        (
            "protobuf = { message = \"chat.v1.Event\" }\n".to_owned(),
            "protobuf.proto",
            "missing: name the .proto files",
        ),
        (
            described.replace(" }", ", descriptor_set = \"a.binpb\" }"),
            "protobuf.descriptor_set",
            "can't be combined with proto",
        ),
        (
            path("until = { json = \"/knd\" }\n"),
            "until",
            "chat.v1.Event has no field `knd`",
        ),
        (
            path("take.kind = \"/knd\"\n"),
            "take.kind",
            "chat.v1.Event has no field `knd`",
        ),
        (
            path("take.kind = { bytes = \"1..\" }\n"),
            "take.kind",
            "use a JSON Pointer",
        ),
        (
            path("until = 0\n"),
            "protobuf",
            "the step awaits no message",
        ),
    ] {
        let steps = format!("[[steps]]\npath = \"/\"\nsend = \"a\"\n{step}");
        write_plan(&place, "127.0.0.1:1", &steps);
        let ran = place.run(&["run", "chat.toml", "--dry-run"]);
        assert_eq!(ran.status.code(), Some(2), "{step}");
        let said = stderr_of(&ran);
        assert!(
            said.contains(&format!("`steps.0.{key}`")) && said.contains(problem),
            "{step}: {said}"
        );
    }
}
