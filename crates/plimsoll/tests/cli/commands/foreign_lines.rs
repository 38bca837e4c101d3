//! Lines of other tools, and lines without a load, against servers.

use super::*;

/// Runs a command that must be refused as typed wrongly; what it printed for people.
fn assert_refused(place: &Place, arguments: &[&str]) -> String {
    let ended = place.run(arguments);
    let said = stderr_of(&ended);
    assert_eq!(ended.status.code(), Some(2), "{arguments:?}: {said}");
    said
}

#[test]
fn line_of_another_tool_makes_its_calls() {
    let place = Place::new();
    let server = place.serve(&["files"]);
    let url = format!("http://{}/bytes/1KiB", server.address());
    for (line, calls, clients) in [
        (vec!["hey", "-n", "20", "-c", "4", &url], 20, 4),
        (vec!["-n", "12", "-c", "3", "-k", &url], 12, 3),
        (vec!["curl", "-s", &url], 1, 1),
        (vec!["h2load", "--h1", "-n8", "-c2", &url], 8, 2),
    ] {
        let out = format!("run-{calls}");
        let mut command = place.command(&line);
        command
            .env("PLIMSOLL_OUT", &out)
            .env("PLIMSOLL_JSON", "true");
        let ended = output(&mut command, MAX_WAIT);
        let said = stderr_of(&ended);
        assert_eq!(ended.status.code(), Some(0), "{line:?}: {said}");
        assert!(said.contains("as: plimsoll http http://"), "{said}");
        let run: serde_json::Value = serde_json::from_slice(&ended.stdout).expect("JSON");
        let run = support::only_run(&run);
        assert_eq!(run["total"]["ok"], calls, "{line:?}");
        let plan = place.read(&format!("{out}/plan.toml"));
        assert!(plan.contains(&format!("clients = {clients}\n")), "{plan}");
    }
}

#[test]
fn line_without_counterpart_ends_with_usage_error() {
    let place = Place::new();
    let line = ["ab", "-n", "5", "-c", "1", "-w", "http://127.0.0.1:1/"];
    let said = assert_refused(&place, &line);
    let ours =
        "with Plimsoll: plimsoll http http://127.0.0.1:1/ --clients 1 --calls 5 --cold Error";
    assert!(said.contains(ours) && said.contains("line of ab"), "{said}");
    let line = ["k6", "run", "--vus", "3", "--duration", "5s", "x.js"];
    let said = assert_refused(&place, &line);
    let ours = "with Plimsoll: plimsoll http URL --clients 3 --duration 5s -L Error";
    assert!(said.contains(ours), "{said}");
}

/// A flag that changes little is left out, by name.
#[test]
fn flags_left_out_are_named() {
    let place = Place::new();
    let line = ["curl", "--retry", "2", "http://a.test/", "--dry-run"];
    let ended = place.run(&line);
    let said = stderr_of(&ended);
    assert_eq!(ended.status.code(), Some(0), "{said}");
    let note = "`--retry` is left out: a call that fails is counted, and not made again";
    assert!(said.contains(note), "{said}");
}

#[test]
fn host_and_port_alone_are_a_target() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    let address = server.address();
    let mut arguments = vec![
        "grpc",
        &address,
        "--clients",
        "2",
        "--calls",
        "10",
        "--out",
        "run",
    ];
    arguments.extend(SCORE);
    let said = place.expect(0, &arguments);
    assert!(said.contains("10 ok"), "{said}");
    let shown = place.expect(0, &["http", "a.test:443/x", "--dry-run"]);
    assert!(shown.contains("https://a.test:443/x"), "{shown}");
    let shown = place.expect(
        0,
        &[
            "http://a.test/x",
            "--rate",
            "5",
            "--duration",
            "2",
            "--dry-run",
        ],
    );
    assert!(shown.contains("5/s") && shown.contains("2s"), "{shown}");
}
