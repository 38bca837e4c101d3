//! The list of proxies, its page, and proxies that come from elsewhere than Debian.

use std::fs;
use std::path::Path;

use plimsoll_model::comparisons::ladder::LadderRecord;

use super::{CALLS, LOAD, assert_all_ok, served, write};
use crate::support::peers::peer;
use crate::support::{MAX_WAIT, Place, output, stderr_of, text};

#[test]
fn proxies_are_listed_with_their_configurations() {
    let place = Place::new();
    let all = place.expect_json(0, &["proxies", "--json"]);
    let nginx = &all["proxies"].as_array().unwrap()[1];
    assert_eq!(nginx["name"], "nginx");
    assert!(
        nginx["version"]
            .as_str()
            .is_some_and(|v| v.starts_with("1.")),
        "{nginx}"
    );
    assert!(
        nginx["tls"]
            .as_str()
            .is_some_and(|v| v.starts_with("OpenSSL")),
        "{nginx}"
    );
    let config = [
        "proxies", "--config", "nginx", "--carry", "grpc", "--tls", "mutual",
    ];
    let out = place.expect(0, &config);
    for line in ["grpc_pass grpcs://server;", "ssl_verify_client on;"] {
        assert!(out.contains(line), "{out}");
    }
    let wrong = place.run(&["proxies", "--config", "squid"]);
    assert_eq!(wrong.status.code(), Some(2));
}

/// The page has a row for each proxy: what it carries, how it differs from others, and how to get it.
#[test]
fn page_lists_proxies_as_their_definitions_do() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/ladder.md")).unwrap();
    let all = Place::new().expect_json(0, &["proxies", "--json"]);
    let all = all["proxies"].as_array().unwrap();
    let heading = "| proxy | carries | differs | how to get it |";
    let rows = page.lines().skip_while(|line| *line != heading).skip(2);
    let rows: Vec<String> = rows
        .take_while(|line| line.starts_with("| `"))
        .map(|line| line.replace('`', ""))
        .collect();
    let of = |proxy: &serde_json::Value| {
        let carries: Vec<&str> = proxy["carries"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|name| name.as_str())
            .collect();
        let [name, remark, install] =
            ["name", "remark", "install"].map(|key| proxy[key].as_str().unwrap());
        format!("| {name} | {} | {remark} | {install} |", carries.join(", "))
    };
    let expected: Vec<String> = all.iter().map(of).collect();
    assert_eq!(rows, expected);
}

/// Two Envoys with a tunnel between them carry everything as bytes, with mutual TLS between them and with every TLS at
/// their ends.
#[test]
fn envoy_tunnel_carries_every_protocol() {
    let programs = peer("venv/bin/envoy");
    let folder = programs.parent().unwrap().display();
    let path = format!("{folder}:/usr/sbin:/usr/bin:/bin");
    for (name, call, server) in CALLS {
        let place = Place::new();
        let ladder = format!(
            "batch = 5\n{}via = [\"envoy-tunnel+envoy-tunnel\"]\n\
             rungs = [\n{{ tls = \"off\" }},\n{{ tls = \"mutual\" }},\n]",
            served(server)
        );
        write(&place, &format!("{name}.toml"), call, LOAD, &ladder);
        let plan = format!("{name}.toml");
        let mut command = place.command(&["ladder", &plan, "--out", name]);
        let ended = output(command.env("PATH", &path), MAX_WAIT);
        let (out, err) = (text(&ended.stdout), stderr_of(&ended));
        assert_eq!(ended.status.code(), Some(0), "{name}: {out}{err}");
        let record = LadderRecord::load(&place.path(name)).unwrap();
        assert_eq!((record.rungs.len(), record.skipped.len()), (2, 0), "{out}");
        assert_all_ok(&place, name, &record, 100);
    }
}
