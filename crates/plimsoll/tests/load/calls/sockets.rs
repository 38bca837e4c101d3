//! Journeys with steps over WebSocket, through rooms on Python's `websockets`.

#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::support::peers::python;
use super::support::{MAX_WAIT, Place, Server, only_run, stderr_of, text};

const LOGIN: &str = r#"
[[steps]]
name = "log in"
method = "POST"
path = "/login"
body = '{"user": "ada \"{{seq}}\""}'
take = { member = "/member", token = "/token" }
"#;

const OPEN: &str = r#"
[[steps]]
name = "open"
target = "SOCKETS"
path = "/rooms/{{member}}?token={{token}}"
subprotocol = ["room.v1", "{{token}}"]
headers.authorization = "Bearer {{token}}"
until = { json = "/type", equals = "welcome" }
take.seat = "/seat"
take.user = { regex = '"user": "([^ ]+)' }
take.chosen = { header = "sec-websocket-protocol" }
"#;

const USE: &str = r#"
[[steps]]
name = "say"
target = "SOCKETS"
send = '{"do": "say", "id": {{seat}}, "text": "by {{user}} over {{chosen}}"}'
until = { json = "/id", equals = "{{seat}}" }
expect = "contains:by ada over room.v1"
error = { json = "/type", equals = "error" }
repeat = 2

[[steps]]
name = "ask for news"
method = "POST"
path = "/news?member={{member}}"

[[steps]]
name = "read news"
target = "SOCKETS"
pause = "5ms"
until = 3
take.number = "/number"

[[steps]]
name = "read end"
target = "SOCKETS"
until = { json = "/of/news", equals = 3 }
"#;

struct Rooms {
    /// Stops the server at its end.
    _server: Server,
    api: String,
    sockets: String,
}

impl Rooms {
    fn start(place: &Place) -> Rooms {
        let mut server = Server::start(&mut python(place, "ws_rooms.py"));
        Rooms {
            api: format!("http://{}", server.address()),
            sockets: format!("ws://{}", server.next_address()),
            _server: server,
        }
    }

    /// Writes the plan of `journeys` by three clients.
    fn write_plan(&self, place: &Place, steps: &str, journeys: u32) {
        let load = format!("[load]\nclients = 3\ncalls = {journeys}\ndeadline = \"5s\"\n");
        let steps = steps.replace("SOCKETS", &self.sockets);
        let plan = format!("name = \"rooms\"\ntarget = \"{}\"\n{load}{steps}", self.api);
        fs::write(place.path("rooms.toml"), plan).expect("a writable folder");
    }

    fn run(&self, place: &Place, steps: &str, journeys: u32) -> Value {
        self.write_plan(place, steps, journeys);
        run(place, "rooms.toml", "run")
    }
}

fn run(place: &Place, plan: &str, out: &str) -> Value {
    let _ = fs::remove_dir_all(place.path(out));
    let said = place.run(&["run", plan, "-q", "--json", "--out", out]);
    let printed = text(&said.stdout);
    let parsed = serde_json::from_str(&printed);
    only_run(&parsed.unwrap_or_else(|e| panic!("{e}: {printed}{}", stderr_of(&said))))
}

/// Returns the name, the calls due and the calls ok of each step.
fn counts(run: &Value) -> Vec<(&str, u64, u64)> {
    let steps = run["total"]["steps"].as_array().expect("a list");
    let each = steps.iter().map(|step| {
        let count = |key: &str| step[key].as_u64().expect("a count");
        (
            step["name"].as_str().expect("a name"),
            count("due"),
            count("ok"),
        )
    });
    each.collect()
}

/// Returns the codes of errors, and the first text of each.
fn failures(run: &Value) -> Vec<(&str, u64, &str)> {
    let errors = run["total"]["errors_by_code"].as_array().expect("a list");
    let details = run["details"].as_array().expect("a list");
    let each = errors.iter().map(|error| {
        let of_code = |detail: &&Value| detail["code"] == error["code"];
        let detail = details
            .iter()
            .find(of_code)
            .and_then(|detail| detail["text"].as_str());
        let count = error["count"].as_u64().expect("a count");
        (
            error["code"].as_str().expect("a code"),
            count,
            detail.unwrap_or(""),
        )
    });
    each.collect()
}

/// Waits until the server has seen so many sockets end, and returns their close codes.
fn closes(place: &Place, sockets: usize) -> Vec<String> {
    let end = Instant::now() + MAX_WAIT;
    loop {
        let read = fs::read_to_string(place.path("closes")).unwrap_or_default();
        let codes: Vec<String> = read.lines().map(str::to_owned).collect();
        if codes.len() >= sockets {
            return codes;
        }
        assert!(Instant::now() < end, "{codes:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn socket_stays_open_while_requests_go_on() {
    let place = Place::new();
    let rooms = Rooms::start(&place);
    let steps = [LOGIN, OPEN, USE].concat();
    let ran = rooms.run(&place, &steps, 12);
    assert_eq!(failures(&ran), []);
    let all = |name, times: u64| (name, 12 * times, 12 * times);
    let expected = [
        all("log in", 1),
        all("open", 1),
        all("say", 2),
        all("ask for news", 1),
        all("read news", 1),
        all("read end", 1),
    ];
    assert_eq!(counts(&ran), expected);
    assert_eq!(ran["total"]["measures"]["counts"]["users_ok"], 12);
    // A welcome, three messages for each saying, three news and the end: each was read by one step.
    let received = ran["total"]["messages"]["received"].as_u64();
    assert_eq!(received, Some(12 * (1 + 2 * 3 + 3 + 1)), "{ran}");
    assert_eq!(closes(&place, 12), ["1000"; 12]);
    // A saved plan makes the same journeys.
    fs::copy(place.path("run/plan.toml"), place.path("saved.toml")).expect("a saved plan");
    assert_eq!(counts(&run(&place, "saved.toml", "again")), expected);
}

#[test]
fn sockets_over_tls_share_cookies_of_host() {
    let place = Place::new();
    place.certificates();
    let mut command = python(&place, "ws_rooms.py");
    let mut server = Server::start(command.args(["certs/server.crt", "certs/server.key"]));
    let port = |address: &str| address.rsplit(':').next().expect("a port").to_owned();
    let rooms = Rooms {
        api: format!("http://localhost:{}", port(&server.address())),
        sockets: format!("wss://localhost:{}", port(&server.next_address())),
        _server: server,
    };
    let tls = "[tls]\nca = \"certs/ca.crt\"\n";
    let ran = rooms.run(&place, &[tls, LOGIN, OPEN, USE].concat(), 6);
    assert_eq!(failures(&ran), []);
    assert_eq!(ran["total"]["measures"]["counts"]["users_ok"], 6);
    // The requests use no TLS.
    assert_eq!(ran["tls"]["handshakes"][0]["count"], 6);
}

#[test]
fn steps_can_close_and_reopen_sockets() {
    let place = Place::new();
    let rooms = Rooms::start(&place);
    let close = "[[steps]]\ntarget = \"SOCKETS\"\nclose = true\n";
    let reopen = OPEN.replace("name = \"open\"", "name = \"reopen\"");
    let again = reopen.replace("reopen", "open again");
    let ran = rooms.run(&place, &[LOGIN, OPEN, close, &reopen, &again].concat(), 6);
    assert_eq!(failures(&ran), []);
    let names: Vec<&str> = counts(&ran).iter().map(|step| step.0).collect();
    assert_eq!(names, ["log in", "open", "close", "reopen", "open again"]);
    assert_eq!(ran["total"]["ok"], 5 * 6);
    assert_eq!(closes(&place, 18), ["1000"; 18]);
}

#[test]
fn closed_and_missing_sockets_fail_their_steps() {
    let place = Place::new();
    let rooms = Rooms::start(&place);
    let leave = "[[steps]]\nname = \"leave\"\ntarget = \"SOCKETS\"\nsend = '{\"do\": \"leave\"}'\nuntil = 0\n";
    let late = "[[steps]]\nname = \"read bye\"\npause = \"100ms\"\ntarget = \"SOCKETS\"\nuntil = \"bye\"\n";
    let missed = "[[steps]]\nname = \"read on\"\ntarget = \"SOCKETS\"\nuntil = 1\n";
    // What arrived before the Close is still read.
    let ran = rooms.run(&place, &[LOGIN, OPEN, leave, late, missed].concat(), 3);
    assert_eq!(counts(&ran)[3..], [("read bye", 3, 3), ("read on", 3, 0)]);
    let [("SOCKET_CLOSED", 3, text)] = failures(&ran)[..] else {
        panic!("{ran}");
    };
    assert!(
        text.contains("closed the socket with 1013 try again later"),
        "{text}"
    );
    for (steps, code, detail) in [
        (
            [LOGIN, missed].concat(),
            "SOCKET_CLOSED",
            "step read on: no step before it has opened a WebSocket",
        ),
        (
            [LOGIN, &OPEN.replace("Bearer {{token}}", "Bearer t")].concat(),
            "SOCKET_DENIED",
            "401",
        ),
        (
            [LOGIN, &OPEN.replace("\"/seat\"", "\"/chair\"")].concat(),
            "TAKE_MISSING",
            "step open: `seat` (json /chair): the answer has none; it begins: {\"type\": \"welcome\"",
        ),
        (
            [
                LOGIN,
                OPEN,
                &USE.replace("\"do\": \"say\"", "\"do\": \"fail\""),
            ]
            .concat(),
            "EVENT_ERROR",
            "no such room",
        ),
        (
            [
                LOGIN,
                OPEN,
                &USE.replace("contains:by ada", "contains:by bob"),
            ]
            .concat(),
            "HTTP_BODY",
            "no message is what the step expects",
        ),
    ] {
        let ran = rooms.run(&place, &steps, 3);
        let failed = failures(&ran);
        assert!(
            matches!(failed[..], [(found, 3, text)] if found == code && text.contains(detail)),
            "{code}: {failed:?}"
        );
        assert_eq!(ran["total"]["measures"]["counts"]["users_failed"], 3);
    }
}

#[test]
fn invalid_socket_steps_name_key_and_line() {
    let place = Place::new();
    let dry_run = |steps: &str| {
        let plan =
            format!("target = \"http://127.0.0.1:1\"\n[load]\nclients = 1\ncalls = 1\n{steps}");
        fs::write(place.path("wrong.toml"), plan).expect("a writable folder");
        let said = place.run(&["run", "wrong.toml", "--dry-run"]);
        assert_eq!(said.status.code(), Some(2), "{}", text(&said.stdout));
        stderr_of(&said)
    };
    let first = "[[steps]]\npath = \"/\"\n";
    for (step, key, right) in [
        (
            "headers.a = \"b\"",
            "steps.1.headers",
            "the step with the path",
        ),
        (
            "subprotocol = \"a b\"\npath = \"/\"",
            "steps.1.subprotocol",
            "use letters",
        ),
        (
            "until = { json = \"type\" }",
            "steps.1.until",
            "JSON Pointer such as /type",
        ),
        ("until = { equals = 3 }", "steps.1.until", "one of json"),
        ("until = true", "steps.1.until", "a number of messages"),
        ("until = 0", "steps.1.until", "does nothing"),
        ("expect = 3", "steps.1.expect", "only until can be a number"),
        (
            "close = true\nexpect = \"a\"",
            "steps.1.expect",
            "awaits no message",
        ),
        (
            "take.a = { header = \"x\" }",
            "steps.1.take.a",
            "the step with the path",
        ),
        (
            "close = true\ntake.a = \"/b\"",
            "steps.1.take.a",
            "awaits no message",
        ),
        ("send = \"{{token}}\"", "steps.1.send", "token"),
        ("binary = true", "steps.1.binary", "nothing is sent"),
        (
            "reconnects = 3",
            "steps.1.reconnects",
            "the step with the path",
        ),
        (
            "reconnect_pause = \"1s\"\npath = \"/\"",
            "steps.1.reconnect_pause",
            "write reconnects = 5",
        ),
        ("tokens = false", "steps.1.tokens", "leave it out"),
        ("tokens = 0", "steps.1.tokens", "write 1 or more"),
        (
            "tokens = \"many\"",
            "steps.1.tokens",
            "not a number of tokens",
        ),
        ("tokens = \"{{gone}}\"", "steps.1.tokens", "gone"),
        ("tokens = [1]", "steps.1.tokens", "a number of tokens"),
        (
            "tokens = true\nuntil = 3",
            "steps.1.until",
            "not used with tokens",
        ),
        (
            "method = \"POST\"",
            "steps.1.method",
            "not a key of a step over WebSocket",
        ),
        ("path = \"/a b\"", "steps.1.path", "/a%20b"),
    ] {
        let steps = format!("{first}[[steps]]\ntarget = \"ws://127.0.0.1:2\"\n{step}\n");
        let said = dry_run(&steps);
        assert!(
            said.contains(&format!("`{key}`")) && said.contains(right),
            "{step}: {said}"
        );
        // The step's own keys begin in line 9.
        let name = key.split('.').nth(2).expect("a key");
        let line = step.lines().position(|line| line.starts_with(name));
        let place = format!("wrong.toml:{}:", 9 + line.expect("a line"));
        assert!(said.contains(&place), "{place} {said}");
    }
    let said = dry_run(&format!(
        "{first}[[steps]]\ntarget = \"ws://127.0.0.1:2/a\"\nuntil = 1\n"
    ));
    assert!(said.contains("write it as path"), "{said}");
    let said = dry_run(&format!("{first}send = \"a\"\n"));
    assert!(said.contains("not a key of a step over HTTP"), "{said}");
}

#[test]
fn journey_may_consist_of_socket_steps_only() {
    let place = Place::new();
    let server = Server::start(&mut python(&place, "ws_server.py"));
    let plan = format!(
        r#"
target = "ws://{}"
[rows]
file = "users.csv"
[[steps]]
path = "/script"
send = ["login {{{{row.name}}}}", "set {{{{seq}}}}", "get"]
until = "that is all"
take.value = {{ regex = "(that)" }}
[[steps]]
name = "again"
send = "get"
until = "contains:{{{{row.name}}}} has"
[[steps]]
name = "rest"
expect = "that is all"
[load]
rate = "40/s"
duration = "500ms"
"#,
        server.address()
    );
    fs::write(place.path("users.csv"), "name\nann\nbob\n").expect("a writable folder");
    fs::write(place.path("own.toml"), plan).expect("writable");
    let ran = run(&place, "own.toml", "run");
    assert_eq!(failures(&ran), []);
    assert_eq!(
        counts(&ran),
        [("GET /script", 20, 20), ("again", 20, 20), ("rest", 20, 20)]
    );
}

#[test]
fn binary_frames_are_sent_matched_and_taken() {
    let place = Place::new();
    let rooms = Rooms::start(&place);
    fs::write(place.path("frame.bin"), [0, 159, 146, 150]).expect("a writable folder");
    let steps = r#"
[[steps]]
name = "hex"
target = "SOCKETS"
send = { hex = "00ff 10" }
expect = { hex = "ff03" , at = 0 }
take.raw = { bytes = "2.." }
take.id = { bytes = "2..4", as = "hex" }
take.text = { regex = '(?s-u)^\xff.(.*)$', as = "base64" }

[[steps]]
name = "raw"
target = "SOCKETS"
send = ["{{id}}{{raw}}", { base64 = "AP8Q" }]
binary = true
until = { hex = "ff03 00ff10" }

[[steps]]
name = "file"
target = "SOCKETS"
send = { file = "frame.bin" }
until = { base64 = "/wQAn5KW" }
error = { hex = "ff05", at = 0 }

[[steps]]
name = "text"
target = "SOCKETS"
send = '{"do": "say", "id": {{seat}}, "text": "{{text}} {{id}}"}'
until = "contains:AP8Q 00ff"
"#;
    let journeys = 6;
    let run = rooms.run(&place, &format!("{LOGIN}{OPEN}{steps}"), journeys);
    let count = u64::from(journeys);
    let names = ["log in", "open", "hex", "raw", "file", "text"];
    let all: Vec<(&str, u64, u64)> = names.iter().map(|name| (*name, count, count)).collect();
    assert_eq!(counts(&run), all, "{run}");
    for (step, problem) in [
        ("send = { hex = \"0\" }", "hex: not hexadecimal"),
        ("send = { base64 = \"*\" }", "base64: not base64"),
        ("send = { file = \"gone.bin\" }", "can't read gone.bin"),
        (
            "send = { hex = \"00\", base64 = \"AA==\" }",
            "write either hex or base64",
        ),
        ("until = { hex = \"\" }", "no bytes: write at least one"),
        (
            "until = { hex = \"00\", json = \"/a\" }",
            "write one of json",
        ),
        ("take.x = { bytes = \"3..2\" }", "not a range of bytes"),
    ] {
        let step = format!("[[steps]]\nname = \"wrong\"\ntarget = \"SOCKETS\"\n{step}\n");
        rooms.write_plan(&place, &format!("{LOGIN}{OPEN}{step}"), 1);
        let refused = place.run(&["run", "rooms.toml", "--dry-run"]);
        let said = stderr_of(&refused);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(
            said.contains("steps.2.") && said.contains(problem),
            "{said}"
        );
    }
}

#[test]
fn sockets_of_aborted_users_are_closed() {
    let place = Place::new();
    let rooms = Rooms::start(&place);
    let wait = r#"
[[steps]]
name = "wait"
target = "SOCKETS"
until = "never"
"#;
    rooms.write_plan(&place, &format!("{LOGIN}{OPEN}{wait}"), 3);
    let plan = fs::read_to_string(place.path("rooms.toml")).expect("a plan");
    let load = "duration = \"1s\"\ndrain = \"200ms\"\ndeadline = \"60s\"";
    let plan = plan.replace("calls = 3\ndeadline = \"5s\"", load);
    fs::write(place.path("rooms.toml"), plan).expect("a writable folder");
    let run = run(&place, "rooms.toml", "run");
    assert_eq!(counts(&run)[1..], [("open", 3, 3), ("wait", 3, 0)], "{run}");
    assert_eq!(closes(&place, 3), ["1000"; 3]);
}
