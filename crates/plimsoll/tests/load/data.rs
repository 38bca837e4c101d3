//! User data on the wire: a grpcio server records the metadata and messages of every call byte for
//! byte, and the counts are compared with what was configured.
//!
//! `make setup` installs the server; without it these tests fail and say so.

use crate::support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::process::Stdio;

use serde_json::Value;
use support::peers::python;
use support::{Place, Server, stderr_of, traces, wait};

const SHOP_PROTO: &str = r#"syntax = "proto3"; package shop;
    message Item { string name = 1; int32 price = 2; }
    service Shop {
      rpc Add(Item) returns (Item);
      rpc AddAll(stream Item) returns (Item);
    }"#;

/// A recording server, in a place with the description of its service.
struct RecordingServer {
    place: Place,
    server: Server,
}

/// How many calls carried each value.
type CallsByValue = BTreeMap<String, u64>;

impl RecordingServer {
    fn new() -> RecordingServer {
        let place = Place::new();
        fs::write(place.path("shop.proto"), SHOP_PROTO).expect("writable");
        let server = Server::start(&mut python(&place, "recorder.py"));
        RecordingServer { place, server }
    }

    /// Runs `calls` calls of a method, all of which must succeed.
    #[track_caller]
    fn load(&self, method: &str, calls: u64, arguments: &[&str]) -> Value {
        let (url, calls_flag) = (self.server.plaintext(), calls.to_string());
        let method = format!("shop.Shop/{method}");
        let _ = fs::remove_dir_all(self.place.path("run"));
        let all = [
            &["grpc", &url, "-q", "--json", "--proto", "shop.proto"][..],
            &["-m", &method, "--clients", "4", "--calls", &calls_flag],
            if arguments.contains(&"--cold") {
                &["--out", "run"][..]
            } else {
                &["--connections", "2", "--out", "run"]
            },
            arguments,
        ];
        let run = self.place.expect_run(0, &all.concat());
        assert_eq!(run["total"]["ok"], calls, "{run}");
        run
    }

    /// Stops the server; returns what it recorded.
    #[track_caller]
    fn stop(self) -> RecordedCalls {
        let (code, said) = self.server.stop();
        assert_eq!(code, 0, "{said}");
        let line = said.lines().last().expect("what it remembers");
        RecordedCalls(serde_json::from_str(line).expect("JSON"))
    }
}

struct RecordedCalls(Value);

impl RecordedCalls {
    #[track_caller]
    fn metadata(&self, name: &str) -> CallsByValue {
        serde_json::from_value(self.0["metadata"][name].clone()).expect("counts")
    }

    /// Calls by their messages in hexadecimal, joined with commas.
    #[track_caller]
    fn calls(&self) -> CallsByValue {
        serde_json::from_value(self.0["calls"].clone()).expect("counts")
    }
}

fn calls_by_value<const N: usize>(values: [(&str, u64); N]) -> CallsByValue {
    values.map(|(value, n)| (value.to_owned(), n)).into()
}

#[test]
fn per_call_metadata_arrives_as_templated() {
    // One message for all calls; one per call; one stream of messages per call.
    for (method, data) in [
        ("Add", r#"{"name": "a"}"#),
        ("Add", r#"{"name": "{{seq}}"}"#),
        ("AddAll", r#"[{"name": "a"}, {"price": 7}]"#),
        ("AddAll", r#"[{"name": "{{seq}}"}, {"price": 7}]"#),
    ] {
        let abroad = RecordingServer::new();
        fs::write(
            abroad.place.path("users.csv"),
            "user,token\nann,AQID\nbob b.,/w==\ncy,\n",
        )
        .expect("writable");
        let metadata = [
            "x-user: {{row.user}}",
            "x-call: n{{seq}}",
            "x-same: {{{{seq}}",
            "id-bin: {{uuid}}",
            "token-bin: {{row.token}}",
        ];
        let mut arguments = vec!["-d", data, "--rows", "users.csv", "--workers", "2"];
        arguments.extend(metadata.iter().flat_map(|typed| ["--metadata", typed]));
        abroad.load(method, 30, &arguments);
        let remembered = abroad.stop();
        let users = calls_by_value([("ann", 10), ("bob b.", 10), ("cy", 10)]);
        assert_eq!(remembered.metadata("x-user"), users, "{method} {data}");
        let tokens = calls_by_value([("010203", 10), ("ff", 10), ("", 10)]);
        assert_eq!(remembered.metadata("token-bin"), tokens);
        assert_eq!(
            remembered.metadata("x-same"),
            calls_by_value([("{{seq}}", 30)])
        );
        let calls: CallsByValue = (0..30).map(|n| (format!("n{n}"), 1)).collect();
        assert_eq!(remembered.metadata("x-call"), calls);
        let ids = remembered.metadata("id-bin");
        assert_eq!(ids.len(), 30, "{ids:?}");
        // A UUID of version 4 (RFC 9562).
        let is_uuid = |id: &String| id.len() == 32 && &id[12..13] == "4";
        assert!(ids.keys().all(is_uuid), "{ids:?}");
    }
}

/// Each call has its own trace (Trace Context), over several workers and processes, and the traces
/// listed in the report are among those that the server saw.
#[test]
fn slowest_call_traces_are_seen_by_server() {
    let abroad = RecordingServer::new();
    let (mut listed, mut prefixes) = (BTreeSet::new(), BTreeSet::new());
    for (method, data, flags) in [
        ("Add", r#"{"name": "a"}"#, &["--workers", "2"][..]),
        ("Add", r#"{"name": "{{seq}}"}"#, &["--processes", "2"]),
        (
            "AddAll",
            r#"[{"name": "a"}, {"price": 7}]"#,
            &["--workers", "2"],
        ),
        ("Add", "{}", &["--cold"]),
    ] {
        let traced = [flags, &["-d", data, "--traceparent"]].concat();
        let run = abroad.load(method, 30, &traced);
        let slowest = traces::slowest(&run);
        assert_eq!(slowest.len(), 10, "{run}");
        prefixes.extend(slowest.iter().map(|id| id[..16].to_owned()));
        listed.extend(slowest);
    }
    // Without the flag no trace header is sent and none is listed.
    assert_eq!(abroad.load("Add", 5, &[])["slowest"], Value::Null);
    assert_eq!(listed.len(), 40);
    // Each process of each run draws its own ids.
    assert!((4..=5).contains(&prefixes.len()), "{prefixes:?}");
    let (place, remembered) = (Place::new(), abroad.stop());
    let headers = remembered.metadata("traceparent");
    assert!(headers.values().all(|times| *times == 1), "{headers:?}");
    let seen = traces::traces(&place, headers.keys().map(String::as_str));
    assert_eq!(seen.len(), 120);
    assert!(listed.is_subset(&seen), "{listed:?} {seen:?}");
}

/// A secret stays out of the plan that shards and the run directory keep.
#[test]
fn secret_metadata_varies_across_processes() {
    let abroad = RecordingServer::new();
    fs::write(abroad.place.path("t.csv"), "token\nred\nblue\n").expect("writable");
    abroad.load(
        "Add",
        20,
        &[
            "--metadata",
            "authorization: Bearer {{row.token}}",
            "--metadata",
            "x-api-key: {{{{7",
            "--rows",
            "t.csv",
            "--processes",
            "2",
        ],
    );
    let plan = abroad.place.read("run/plan.toml");
    assert!(plan.contains("PLIMSOLL_METADATA_AUTHORIZATION"), "{plan}");
    assert!(!plan.contains("Bearer"), "{plan}");
    let remembered = abroad.stop();
    assert_eq!(
        remembered.metadata("authorization"),
        calls_by_value([("Bearer blue", 10), ("Bearer red", 10)])
    );
    assert_eq!(
        remembered.metadata("x-api-key"),
        calls_by_value([("{{7", 20)])
    );
}

/// Field 9 is not in the description and the name is `é`, so an encoder would not produce these
/// bytes.
const UNENCODABLE_MESSAGE: &[u8] = b"\x48\x05\x10\x87\x00\x0a\x02\xc3\xa9";
const ODD_HEX: &str = "48051087000a02c3a9";

#[test]
fn binary_messages_arrive_byte_for_byte() {
    let abroad = RecordingServer::new();
    let place = &abroad.place;
    // The message spans several DATA frames.
    let large = [&b"\x0a\xa0\x9c\x01"[..], &b"x".repeat(20_000)].concat();
    for (name, bytes) in [
        ("odd.bin", UNENCODABLE_MESSAGE),
        ("empty.bin", b""),
        ("large.bin", &large),
        (
            "many.bin",
            &[&[2, 0x10, 7, 0, 9][..], UNENCODABLE_MESSAGE].concat(),
        ),
    ] {
        fs::write(place.path(name), bytes).expect("writable");
    }
    let plan = "target = \"TARGET\"\n[call.grpc]\nmethod = \"shop.Shop/Add\"\nproto = [\"shop.proto\"]\n\
                message_binary = [\"odd.bin\", { base64 = \"EAg=\" }]\n[load]\nclients = 2\ncalls = 10\n";
    let plan = plan.replace("TARGET", &abroad.server.plaintext());
    fs::write(place.path("plan.toml"), plan).expect("writable");

    abroad.load("Add", 7, &["--data-binary", "@odd.bin"]);
    abroad.load(
        "Add",
        4,
        &["--data-binary", "@empty.bin", "--compression", "gzip"],
    );
    abroad.load("Add", 3, &["--data-binary", "@large.bin"]);
    // The messages are used in turn: 2, 2 and 2.
    abroad.load("Add", 6, &["--data-delimited", "@many.bin"]);
    let both = ["--data-binary", "@odd.bin", "--data-delimited", "@many.bin"];
    abroad.load("AddAll", 5, &both);
    let out = ["--out", "planned", "-q"];
    place.expect(0, &[&["run", "plan.toml"], &out[..]].concat());
    // The plan kept in the run needs no file.
    for name in ["odd.bin", "many.bin"] {
        fs::remove_file(place.path(name)).expect("a file");
    }
    place.expect(0, &["run", "planned/plan.toml", "--out", "again", "-q"]);

    let remembered = abroad.stop();
    let mut large_hex = "0aa09c01".to_owned();
    large_hex.push_str(&"78".repeat(20_000));
    let stream = format!("{ODD_HEX},1007,,{ODD_HEX}");
    let expected = calls_by_value([
        (ODD_HEX, 7 + 2 + 5 + 5),
        ("", 4 + 2),
        ("1007", 2),
        ("1008", 5 + 5),
        (&large_hex, 3),
        (&stream, 5),
    ]);
    assert_eq!(remembered.calls(), expected);
}

#[test]
fn binary_messages_are_read_from_stdin() {
    for (flag, bytes, expected) in [
        (
            "--data-binary",
            UNENCODABLE_MESSAGE.to_vec(),
            calls_by_value([(ODD_HEX, 4)]),
        ),
        (
            "--data-delimited",
            [&[2, 0x10, 7, 9][..], UNENCODABLE_MESSAGE].concat(),
            calls_by_value([("1007", 2), (ODD_HEX, 2)]),
        ),
    ] {
        let abroad = RecordingServer::new();
        let url = abroad.server.plaintext();
        let call = [
            "grpc",
            &url,
            "-q",
            "--proto",
            "shop.proto",
            "-m",
            "shop.Shop/Add",
        ];
        let load = ["--clients", "2", "--calls", "4", flag, "@-"];
        let mut command = abroad.place.command(&[&call[..], &load].concat());
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("plimsoll starts");
        let mut stdin = child.stdin.take().expect("piped");
        stdin.write_all(&bytes).expect("written");
        drop(stdin);
        assert_eq!(wait(&mut child), 0);
        assert_eq!(abroad.stop().calls(), expected);
    }
}

#[test]
fn malformed_binary_messages_are_rejected_before_load() {
    let place = Place::new();
    fs::write(place.path("shop.proto"), SHOP_PROTO).expect("writable");
    for (name, bytes) in [
        ("cut.bin", &b"\x0a\x05ab"[..]),
        ("latin.bin", b"\x0a\x01\xe9"),
        ("one.bin", b"\x10\x07"),
        ("many.bin", b"\x02\x10\x07\x02\x0a\x05"),
        ("ends.bin", b"\x02\x10\x07\x05\x10"),
    ] {
        fs::write(place.path(name), bytes).expect("writable");
    }
    for (flags, problem) in [
        (
            &["--data-binary", "@cut.bin"][..],
            "cut.bin: not a shop.Item: ",
        ),
        (
            &["--data-binary", "@latin.bin"],
            "latin.bin: not a shop.Item: ",
        ),
        (&["--data-binary", "@gone.bin"], "can't read gone.bin"),
        (&["--data-binary", "one.bin"], "write --data-binary @FILE"),
        (
            &["--data-binary", "@one.bin", "-d", "{}"],
            "can't be combined with --data",
        ),
        (
            &["--data-delimited", "@many.bin"],
            "many.bin, message 2: not a shop.Item: ",
        ),
        (
            &["--data-delimited", "@ends.bin"],
            "ends.bin, message 2: its length at byte 3 is 5, but 1 bytes follow",
        ),
    ] {
        let call = ["grpc", "grpc://127.0.0.1:1", "--proto", "shop.proto"];
        let rest = ["-m", "shop.Shop/Add", "--rate", "1/s", "--calls", "1"];
        let output = place.run(&[&call[..], &rest, flags].concat());
        let said = stderr_of(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        let said: Vec<&str> = said.split_whitespace().filter(|w| *w != "│").collect();
        let said = said.join(" ");
        assert!(said.contains(problem.trim()), "{flags:?}: {said}");
    }
}
