//! What becomes of people's data on the wire: a server on grpcio remembers the metadata and the
//! messages of every call, byte for byte, and their counts are held against what was asked for.
//!
//! `make setup` installs it. Where it is missing these tests fail and say so.

mod support;

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;
use support::peers::python;
use support::{Place, Server};

const SHOP: &str = r#"syntax = "proto3"; package shop;
    message Item { string name = 1; int32 price = 2; }
    service Shop {
      rpc Add(Item) returns (Item);
      rpc AddAll(stream Item) returns (Item);
    }"#;

/// A server that remembers, in a place that has the description of its service.
struct Abroad {
    place: Place,
    server: Server,
}

/// How many calls carried each of some values.
type Counted = BTreeMap<String, u64>;

impl Abroad {
    fn new() -> Abroad {
        let place = Place::new();
        fs::write(place.path("shop.proto"), SHOP).expect("writable");
        let server = Server::start(&mut python(&place, "recorder.py"));
        Abroad { place, server }
    }

    /// Puts `calls` calls on a method, all of which must succeed.
    #[track_caller]
    fn load(&self, method: &str, calls: u64, arguments: &[&str]) {
        let (url, calls_flag) = (self.server.plaintext(), calls.to_string());
        let method = format!("shop.Shop/{method}");
        let _ = fs::remove_dir_all(self.place.path("run"));
        let all = [
            &["grpc", &url, "-q", "--json", "--proto", "shop.proto"][..],
            &["-m", &method, "--clients", "4", "--calls", &calls_flag],
            &["--connections", "2", "--out", "run"],
            arguments,
        ];
        let run = self.place.expect_json(0, &all.concat());
        assert_eq!(run["total"]["ok"], calls, "{run}");
    }

    /// What the server remembers, and its end.
    #[track_caller]
    fn stop(self) -> Remembered {
        let (code, said) = self.server.stop();
        assert_eq!(code, 0, "{said}");
        let line = said.lines().last().expect("what it remembers");
        Remembered(serde_json::from_str(line).expect("JSON"))
    }
}

struct Remembered(Value);

impl Remembered {
    #[track_caller]
    fn metadata(&self, name: &str) -> Counted {
        serde_json::from_value(self.0["metadata"][name].clone()).expect("counts")
    }
}

fn counted<const N: usize>(values: [(&str, u64); N]) -> Counted {
    values.map(|(value, n)| (value.to_owned(), n)).into()
}

#[test]
fn metadata_of_each_call_arrive_as_they_were_asked_for() {
    // One message for all; one a call; streams of each.
    for (method, data) in [
        ("Add", r#"{"name": "a"}"#),
        ("Add", r#"{"name": "{{seq}}"}"#),
        ("AddAll", r#"[{"name": "a"}, {"price": 7}]"#),
        ("AddAll", r#"[{"name": "{{seq}}"}, {"price": 7}]"#),
    ] {
        let abroad = Abroad::new();
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
        let users = counted([("ann", 10), ("bob b.", 10), ("cy", 10)]);
        assert_eq!(remembered.metadata("x-user"), users, "{method} {data}");
        let tokens = counted([("010203", 10), ("ff", 10), ("", 10)]);
        assert_eq!(remembered.metadata("token-bin"), tokens);
        assert_eq!(remembered.metadata("x-same"), counted([("{{seq}}", 30)]));
        let calls: Counted = (0..30).map(|n| (format!("n{n}"), 1)).collect();
        assert_eq!(remembered.metadata("x-call"), calls);
        let ids = remembered.metadata("id-bin");
        assert_eq!(ids.len(), 30, "{ids:?}");
        // Sixteen bytes of version 4 (RFC 9562).
        let is_uuid = |id: &String| id.len() == 32 && &id[12..13] == "4";
        assert!(ids.keys().all(is_uuid), "{ids:?}");
    }
}

/// A secret stays out of the plan that shards and the run directory have.
#[test]
fn secret_metadata_vary_in_several_processes_too() {
    let abroad = Abroad::new();
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
        counted([("Bearer blue", 10), ("Bearer red", 10)])
    );
    assert_eq!(remembered.metadata("x-api-key"), counted([("{{7", 20)]));
}
