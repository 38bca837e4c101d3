//! Journeys with steps over Bolt, against the reference server and the Java library of SOFARPC.

#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

use std::fs;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::support::peers::peer;
use super::support::ports::free_port;
use super::support::{MAX_WAIT, Place, stderr_of};

/// A server of the Java library, which does not print its address.
struct JavaServer {
    child: Child,
    port: u16,
}

impl JavaServer {
    fn start() -> JavaServer {
        let port = free_port();
        let built = peer("java");
        let classes = format!("{0}/classes:{0}/lib/*", built.display());
        let mut command = Command::new("java");
        command
            .args(["-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx256m"])
            .args(["-cp", &classes, "peer.Peer", "sofa-server"])
            .arg(port.to_string());
        let command = command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("a server");
        let server = JavaServer { child, port };
        let end = Instant::now() + MAX_WAIT;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < end, "the Java server does not listen");
            std::thread::sleep(Duration::from_millis(50));
        }
        server
    }
}

impl Drop for JavaServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn counts(run: &Value) -> Vec<(&str, u64, u64)> {
    let steps = run["total"]["steps"].as_array().expect("a list");
    let each = steps.iter().map(|step| {
        let count = |key: &str| step[key].as_u64().expect("a count");
        let name = step["name"].as_str().expect("a name");
        (name, count("due"), count("ok"))
    });
    each.collect()
}

/// Values go from HTTP to Bolt, from call to call, and back.
#[test]
fn bolt_steps_take_values_and_use_them() {
    let place = Place::new();
    let (http, bolt) = (place.serve(&["http"]), place.serve(&["bolt"]));
    let steps = r#"
target = "http://HTTP"
[[steps]]
name = "log in"
method = "POST"
path = "/echo"
body = '{"token": "t \"1\" {{uuid}}"}'
take.token = "/token"

[[steps]]
name = "echo"
target = "sofa://BOLT"
service = "com.alipay.test.TestService:1.0"
method = "echoStr"
arguments = '["{{token}}"]'
header.x-token = "{{seq}}"
loop = { name = "calls", repeat = 2 }
take.said = ""

[[steps]]
name = "again"
loop = "calls"
target = "sofa://BOLT"
service = "com.alipay.test.TestService:1.0"
method = "echoStr"
arguments = '["{\"id\": \"{{said}}\", \"n\": 7}"]'
take.id = { regex = 'id\\": \\"(t [^,]*)\\", ' }

[[steps]]
name = "look"
if = "id"
path = "/bytes/10?of={{said}}"
[load]
clients = 4
calls = 20
"#
    .replace("HTTP", &http.address())
    .replace("BOLT", &bolt.address());
    fs::write(place.path("steps.toml"), &steps).expect("a writable folder");
    place.expect(0, &["run", "steps.toml", "-q", "--out", "run"]);
    let run = place.run_json("run");
    assert_eq!(
        counts(&run),
        [
            ("log in", 20, 20),
            ("echo", 40, 40),
            ("again", 40, 40),
            ("look", 20, 20)
        ],
        "{run}"
    );
    let saved = fs::read_to_string(place.path("run/plan.toml")).expect("a plan");
    assert!(saved.contains("{{token}}"), "{saved}");
    for (from, to, problem) in [
        (
            "'[\"{{token}}\"]'",
            "'\"{{token}}\"'",
            "arguments`: not a JSON array",
        ),
        (
            "take.said = \"\"",
            "take.said = { cookie = \"a\" }",
            "Bolt has no cookies",
        ),
        (
            "take.said = \"\"",
            "take.said = \"\"\nin_flight = 2",
            "steps.1.in_flight",
        ),
        (
            "header.x-token",
            "oneway = true\nheader.x-token",
            "a one-way call has no answer",
        ),
    ] {
        let wrong = steps.replacen(from, to, 1);
        fs::write(place.path("wrong.toml"), wrong).expect("a writable folder");
        let refused = place.run(&["run", "wrong.toml", "--dry-run"]);
        let said = stderr_of(&refused);
        assert_eq!(refused.status.code(), Some(2), "{problem}: {said}");
        assert!(said.contains(problem), "{problem}\n{said}");
    }
}

#[test]
fn journeys_may_have_only_bolt_steps() {
    let place = Place::new();
    let bolt = place.serve(&["bolt"]);
    let steps = format!(
        r#"
target = "sofa://{}"
[call.bolt]
service = "com.alipay.test.TestService:1.0"
method = "echoStr"
[[steps]]
name = "first"
arguments = '["{{{{random 1000 9999}}}}"]'
take.number = ""
[[steps]]
name = "second"
if = "number"
arguments = '["{{{{number}}}} {{{{number}}}}"]'
take.both = {{ regex = '^"[0-9]{{4}} [0-9]{{4}}"$' }}
[[steps]]
name = "third"
arguments = '[{{{{both}}}}]'
[load]
clients = 2
calls = 10
"#,
        bolt.address()
    );
    fs::write(place.path("steps.toml"), steps).expect("a writable folder");
    place.expect(0, &["run", "steps.toml", "-q", "--out", "run"]);
    let run = place.run_json("run");
    let all = [("first", 10, 10), ("second", 10, 10), ("third", 10, 10)];
    assert_eq!(counts(&run), all, "{run}");
}

/// Each step uses what the one before it was answered.
#[test]
fn java_sofarpc_server_answers_steps() {
    let place = Place::new();
    let server = JavaServer::start();
    let plan = format!(
        r#"
target = "sofa://127.0.0.1:{}"
[call.bolt]
service = "peer.HelloService:1.0"
method = "sayHello"
[[steps]]
name = "one"
arguments = '["{{{{uuid}}}}"]'
take.said = ""
[[steps]]
name = "two"
arguments = '["{{{{said}}}}"]'
take.id = {{ regex = 'Hello, Hello, ([0-9a-f-]{{36}})' }}
[[steps]]
name = "three"
service = "peer.TestService:1.0"
method = "echoStr"
arguments = '["\"{{{{id}}}}\" é"]'
take.again = {{ regex = '([0-9a-f-]{{36}})' }}
[[steps]]
name = "fails"
if = "again"
arguments = '["throw"]'
[load]
clients = 4
calls = 20
"#,
        server.port
    );
    fs::write(place.path("steps.toml"), plan).expect("a writable folder");
    place.run(&["run", "steps.toml", "-q", "--out", "run"]);
    let run = place.run_json("run");
    let all = [
        ("one", 20, 20),
        ("two", 20, 20),
        ("three", 20, 20),
        ("fails", 20, 0),
    ];
    assert_eq!(counts(&run), all, "{run}");
    assert_eq!(
        run["total"]["errors_by_code"][0]["code"], "SOFA_ERROR",
        "{run}"
    );
    assert!(
        run["details"].to_string().contains("thrown on request"),
        "{run}"
    );
}
