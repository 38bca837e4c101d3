//! Gateways and clients in Python.

use super::*;

#[test]
fn python_client_works_through_gateway() {
    let place = Place::new();
    for (flags, how) in [(&[][..], &[][..]), (&["--compression"], &["compressed"])] {
        let stack = Stack::start_with(&place, flags);
        let mut command = python(&place, "websockets_client.py");
        command.args([&stack.api, &stack.gateway]).args(how);
        let output = support::output(&mut command, Duration::from_secs(60));
        let said = support::text(&output.stdout);
        assert!(
            output.status.success(),
            "{said}{}",
            support::text(&output.stderr)
        );
        assert!(said.starts_with("ok: websockets "), "{said}");
    }
}

#[test]
fn python_stack_serves_sessions() {
    let place = Place::new();
    let mut server = support::Server::start(&mut python(&place, "websockets_server.py"));
    let sockets = server.next_address();
    let clients = [
        "--clients",
        "12",
        "--queries",
        "3",
        "--reconnect-pause",
        "20ms",
    ];
    let (api, socket) = (
        format!("session://{}", server.address()),
        format!("ws://{sockets}"),
    );
    let to = ["session", &api, "--socket", &socket, "--out", "run", "-q"];
    place.expect(0, &[&to[..], &clients[..]].concat());
    let run = place.run_json("run");
    assert_eq!(run["total"]["ok"], 36, "{run}");
    let counts = &run["total"]["measures"]["counts"];
    assert_eq!(counts["tokens_received"], 36 * 12, "{counts}");
    assert_eq!(counts["tokens_duplicated"], 0, "{counts}");
    // The sockets of every fourth session were dropped in the middle of a run.
    assert_eq!(counts["reconnects"], 3, "{counts}");
}

#[test]
fn python_stack_serves_sessions_over_tls() {
    let place = Place::new();
    place.certificates();
    let mut command = python(&place, "websockets_server.py");
    command.args(["certs/server.crt", "certs/server.key"]);
    let mut server = support::Server::start(&mut command);
    let port = |address: String| address.rsplit(':').next().expect("a port").to_owned();
    let socket = format!("wss://localhost:{}", port(server.next_address()));
    let api = format!("sessions://localhost:{}", server.port);
    let flags = [
        "--ca",
        "certs/ca.crt",
        "--clients",
        "4",
        "--reconnect-pause",
        "20ms",
    ];
    let to = ["session", &api, "--socket", &socket, "--out", "run", "-q"];
    place.expect(0, &[&to[..], &flags[..]].concat());
    let run = place.run_json("run");
    assert_eq!(
        (&run["total"]["ok"], &run["total"]["due"]),
        (&4.into(), &4.into()),
        "{run}"
    );
    assert_eq!(run["total"]["measures"]["counts"]["reconnects"], 1, "{run}");
}
