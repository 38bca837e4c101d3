//! Journeys of gRPC calls: through a shop on grpcio, the reference implementation, and on grpc-go's interoperability
//! server, which returns metadata that it is sent.

#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

use std::fs;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::support::peers::{peer, python};
use super::support::ports::free_port;
use super::support::{MAX_WAIT, Place, Server, only_run, stderr_of, text};

const STEPS: &str = r#"
[rows]
file = "users.csv"

[[steps]]
name = "log in"
method = "shop.Shop/LogIn"
message = { user = "{{row.user}}", password = "secret of {{row.user}}" }
take.token = "/accessToken"
take.session = { metadata = "x-session" }

[[steps]]
name = "list"
method = "shop.Shop/ListItems"
metadata.authorization = "Bearer {{token}}"
metadata.x-session = "{{session}}"
pause = "1ms to 5ms"
take.item = "/items/0"
take.id = "$.items[0].id"
take.price = "/items/0/prices/EUR"
take.availability = "/items/0/availability"
take.page = { json = "/next_page_token", optional = true }

[[steps]]
method = "shop.Shop/ListItems"
name = "more"
message = { page_token = "{{page}}" }
metadata.authorization = "Bearer {{token}}"
metadata.x-session = "{{session}}"
repeat = "while page"
if = "page"
take.page = { json = "/next_page_token", optional = true }

[[steps]]
method = "shop.Shop/PlaceOrder"
metadata.authorization = "Bearer {{token}}"
metadata.x-session = "{{session}}"
on_failure = "retry"
backoff = "5ms"
take.order = { metadata = "x-order" }

[steps.message]
item = "{{item}}"
item_id = "{{id}}"
also_seen = [7, "{{id}}"]
seen_as = "{{availability}}"
price = "{{price}}"
note = "by {{row.user}}"

[[steps]]
name = "watch"
method = "shop.Shop/WatchOrder"
message = { name = "{{order}}" }
metadata.authorization = "Bearer {{token}}"
metadata.x-session = "{{session}}"
expect = 3
take.state = "/state"

[[steps]]
name = "count"
method = "shop.Shop/CountOrders"
if = "state == SHIPPED"
"#;

/// The interoperability server of grpc-go, which does not print its address.
struct InteropServer {
    child: Child,
    port: u16,
}

impl InteropServer {
    fn start() -> InteropServer {
        let port = free_port();
        let mut command = Command::new(peer("bin/interop-server"));
        command.arg(format!("--port={port}"));
        let command = command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("a server");
        let server = InteropServer { child, port };
        let end = Instant::now() + MAX_WAIT;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < end, "the interop server does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }
}

impl Drop for InteropServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the journeys of six clients, twenty in all.
fn run(place: &Place, target: &str, steps: &str, code: i32) -> Value {
    let _ = fs::remove_dir_all(place.path("run"));
    let plan =
        format!("name = \"shop\"\ntarget = \"{target}\"\n[load]\nclients = 6\ncalls = 20\n{steps}");
    fs::write(place.path("shop.toml"), plan).expect("a writable folder");
    let said = place.run(&["run", "shop.toml", "-q", "--json", "--out", "run"]);
    let out = text(&said.stdout);
    assert_eq!(
        said.status.code(),
        Some(code),
        "{out}\n{}",
        stderr_of(&said)
    );
    only_run(&serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}")))
}

/// Returns the calls due and ok of each step.
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
fn grpcio_users_log_in_list_and_order() {
    for flags in [&[][..], &["--gzip"]] {
        let place = Place::new();
        let users: String = (0..20).map(|n| format!("u{n}\n")).collect();
        fs::write(place.path("users.csv"), format!("user\n{users}")).expect("a writable folder");
        let shop = Server::start(python(&place, "grpcio_shop.py").args(flags));
        let target = format!("grpc://{}", shop.address());
        // A server that packs every answer packs its own description, too.
        let proto = format!(
            "{}/../../tests/peers/shop.proto",
            env!("CARGO_MANIFEST_DIR")
        );
        let is_packed = !flags.is_empty();
        let section = if is_packed {
            format!(
                "[call.grpc]\nproto = [{proto:?}]\ncompression = \"gzip\"\ndeadline = \"30s\"\n"
            )
        } else {
            String::new()
        };
        let more = if is_packed {
            vec!["--compression", "gzip", "--proto", &proto]
        } else {
            Vec::new()
        };
        let first = run(&place, &target, &format!("{STEPS}{section}"), 0);
        assert_eq!(
            counts(&first),
            [
                ("log in", 20, 20),
                ("list", 20, 20),
                ("more", 40, 40),
                ("PlaceOrder", 40, 20),
                ("watch", 20, 20),
                ("count", 20, 20),
            ],
            "{first}"
        );
        let measures = &first["total"]["measures"];
        assert_eq!(measures["counts"]["users_ok"], 20, "{first}");
        assert_eq!(measures["times"]["journey"]["count"], 20, "{first}");
        // The shop has seen each user and its order.
        let count = [
            "grpc",
            &target,
            "-m",
            "shop.Shop/CountOrders",
            "--clients",
            "1",
            "--calls",
            "1",
            "-q",
            "--expect-message",
            r#"{"orders": 20, "users": 20}"#,
            "--out",
            "counted",
        ];
        let counted = place.run(&[&count[..], &more].concat());
        assert_eq!(counted.status.code(), Some(0), "{}", stderr_of(&counted));
        // No value that was taken is in the run directory, and its plan runs again.
        let saved = fs::read_to_string(place.path("run/plan.toml")).unwrap();
        assert!(saved.contains("Bearer {{token}}"), "{saved}");
        fs::rename(place.path("run"), place.path("first")).unwrap();
        let again = place.run(&["run", "first/plan.toml", "-q", "--json", "--out", "run"]);
        let again = only_run(&serde_json::from_slice(&again.stdout).expect("JSON"));
        assert_eq!(counts(&again), counts(&first), "{again}");
    }
}

#[test]
fn grpc_go_returns_what_a_step_took() {
    let place = Place::new();
    let server = InteropServer::start();
    let root = env!("CARGO_MANIFEST_DIR");
    let steps = format!(
        r#"
[call.grpc]
method = "grpc.testing.TestService/UnaryCall"
proto = ["{root}/../../tests/peers/interop.proto"]

[[steps]]
name = "first"
metadata.x-grpc-test-echo-initial = "t-{{{{uuid}}}}"
message = {{ response_size = 5 }}
take.token = {{ metadata = "x-grpc-test-echo-initial", regex = "^t-(.*)$" }}
take.body = "/payload/body"

[[steps]]
name = "second"
metadata.x-grpc-test-echo-initial = "{{{{token}}}}"
message = {{ payload = {{ body = "{{{{body}}}}" }} }}
take.again = {{ metadata = "x-grpc-test-echo-initial" }}

[[steps]]
name = "third"
if = "again"
metadata.x-grpc-test-echo-initial = "{{{{again}}}}-{{{{token}}}}"
take.both = {{ metadata = "x-grpc-test-echo-initial", regex = "^[0-9a-f-]{{73}}$" }}
"#
    );
    let target = format!("grpc://127.0.0.1:{}", server.port);
    let run = run(&place, &target, &steps, 0);
    assert_eq!(
        counts(&run),
        [("first", 20, 20), ("second", 20, 20), ("third", 20, 20)],
        "{run}"
    );
}

#[test]
fn steps_call_django_and_grpc_go_in_turn() {
    let place = Place::new();
    let shop = Server::start(python(&place, "django_shop.py").arg("uvicorn"));
    let server = InteropServer::start();
    let root = env!("CARGO_MANIFEST_DIR");
    let steps = format!(
        r#"
[[steps]]
name = "form"
path = "/login"
take.csrf = {{ regex = 'name="csrfmiddlewaretoken" value="([^"]+)"' }}

[[steps]]
name = "log in"
path = "/login"
body = "user=ada&password=secret+of+ada&csrfmiddlewaretoken={{{{csrf}}}}"
headers.content-type = "application/x-www-form-urlencoded"
take.token = "/token"

[[steps]]
name = "call"
target = "grpc://127.0.0.1:{}"
method = "grpc.testing.TestService/UnaryCall"
proto = ["{root}/../../tests/peers/interop.proto"]
message = {{ response_size = 5 }}
metadata.x-grpc-test-echo-initial = "{{{{token}}}}"
take.returned = {{ metadata = "x-grpc-test-echo-initial" }}

[[steps]]
name = "list"
path = "/items?page=1"
headers.authorization = "Bearer {{{{returned}}}}"
take.item = "$.items[?@.in_stock == true].id"

[[steps]]
name = "call again"
target = "grpc://127.0.0.1:{}"
method = "grpc.testing.TestService/StreamingOutputCall"
proto = ["{root}/../../tests/peers/interop.proto"]
message = {{ response_parameters = [{{ size = 3 }}, {{ size = 4 }}] }}
expect = 2
if = "item"
"#,
        server.port, server.port
    );
    let target = format!("http://{}", shop.address());
    let run = run(&place, &target, &steps, 0);
    let names = ["form", "log in", "call", "list", "call again"];
    let all: Vec<(&str, u64, u64)> = names.iter().map(|name| (*name, 20, 20)).collect();
    assert_eq!(counts(&run), all, "{run}");
    // The protocol of a step must have calls that can be steps.
    let plan = fs::read_to_string(place.path("shop.toml")).unwrap();
    let wrong = format!(
        "{plan}\n[[steps]]\nname = \"more\"\ntarget = \"hold://127.0.0.1:1\"\nmethod = \"grpc.examples.echo.Echo/UnaryEcho\"\n"
    );
    fs::write(place.path("wrong.toml"), wrong).expect("a writable folder");
    let refused = place.run(&["run", "wrong.toml", "--dry-run"]);
    let said = stderr_of(&refused);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    let problem = "calls of this kind can't be steps: use http://, ws://, grpc://";
    assert!(
        said.contains("steps.5.target") && said.contains(problem),
        "{said}"
    );
}

#[test]
fn captured_values_must_fit_their_fields() {
    let place = Place::new();
    let server = place.serve(&["echo"]);
    let target = server.plaintext();
    let steps = r#"
[[steps]]
name = "echo"
method = "grpc.examples.echo.Echo/UnaryEcho"
message = { message = "not a number" }
take.said = "/message"

[[steps]]
name = "submit"
method = "orders.OrderService/Submit"
message = { price = "{{said}}" }
"#;
    let failed = run(&place, &target, steps, 0);
    assert_eq!(
        counts(&failed),
        [("echo", 20, 20), ("submit", 20, 0)],
        "{failed}"
    );
    let details = failed["total"]["errors_by_code"][0].to_string();
    assert!(details.contains("TAKE_MISSING"), "{failed}");
    assert!(
        failed.to_string().contains("`said` does not fit price"),
        "{failed}"
    );
}

/// The stream ends at once, and the time that it might have lasted is over during the next step's pause.
#[test]
fn timers_of_ended_streams_leave_later_steps_alone() {
    let place = Place::new();
    let server = place.serve(&["echo"]);
    let steps = r#"
[[steps]]
name = "stream"
method = "grpc.examples.echo.Echo/ServerStreamingEcho"
message = { message = "a" }
stream_duration = "100ms"
take.last = "/message"

[[steps]]
name = "after"
pause = "300ms"
method = "grpc.examples.echo.Echo/UnaryEcho"
message = { message = "{{last}}" }
"#;
    let run = run(&place, &server.plaintext(), steps, 0);
    assert_eq!(
        counts(&run),
        [("stream", 20, 20), ("after", 20, 20)],
        "{run}"
    );
}

#[test]
fn servers_of_another_protocol_fail_their_step_at_once() {
    let place = Place::new();
    let server = place.serve(&["http"]);
    let steps = r#"
[[steps]]
name = "page"
path = "/bytes/10"

[[steps]]
name = "call"
target = "grpc://ADDRESS"
method = "grpc.examples.echo.Echo/UnaryEcho"
message = { message = "a" }
"#
    .replace("ADDRESS", &server.address());
    let target = format!("http://{}", server.address());
    let run = run(&place, &target, &steps, 0);
    assert_eq!(counts(&run), [("page", 20, 20), ("call", 20, 0)], "{run}");
    let code = &run["total"]["errors_by_code"][0]["code"];
    assert_ne!(*code, "DEADLINE_EXCEEDED", "{run}");
}

#[test]
fn steps_take_only_what_answers_have() {
    let place = Place::new();
    let server = place.serve(&["echo"]);
    for (take, problem) in [
        ("\"/said\"", "has no field `said`; its fields are"),
        ("{ cookie = \"sid\" }", "gRPC has no cookies: use metadata"),
    ] {
        let plan = format!(
            "target = \"{}\"\n[load]\nclients = 1\ncalls = 1\n[[steps]]\n\
             method = \"grpc.examples.echo.Echo/UnaryEcho\"\nmessage = {{ message = \"a\" }}\ntake.said = {take}\n",
            server.plaintext()
        );
        fs::write(place.path("wrong.toml"), plan).expect("a writable folder");
        let refused = place.run(&["run", "wrong.toml"]);
        let said = stderr_of(&refused);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(
            said.contains("steps.0.take.said") && said.contains(problem),
            "{said}"
        );
    }
}
