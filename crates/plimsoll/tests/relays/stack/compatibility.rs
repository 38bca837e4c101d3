//! Starts a stack with the flags of existing session load tests.

use super::*;

#[test]
fn compatibility_flags_start_and_stop_stack() {
    let place = Place::new();
    let stack = Stack {
        place: &place,
        first_port: first_port(9),
    };
    let port = |n: u16| (stack.first_port + n).to_string();
    let run = |more: &[&str]| {
        let mut command = place.command(&["stack", "run", "sessions", "--dir", "stack"]);
        let output = support::output(command.args(more), support::MAX_WAIT);
        assert!(output.status.success(), "{}", support::stderr_of(&output));
        support::text(&output.stdout)
    };
    let instances = [
        "--fastapi-instances",
        "1",
        "--wsproxy-instances",
        "2",
        "--fastapi-workers",
        "2",
        "--sessions",
        "200",
    ];
    let ports = [
        ("--first-port", port(0)),
        ("--api-port", port(10)),
        ("--socket-port", port(11)),
        ("--stats-port", port(12)),
    ];
    let ports = ports.iter().flat_map(|(flag, port)| [*flag, port]);
    let up: Vec<&str> = ["--up-only"]
        .into_iter()
        .chain(instances)
        .chain(ports)
        .collect();
    run(&up);
    let status = stack.status(0);
    let named = |name: &str| {
        let processes = status.as_array().expect("a list").iter();
        let names = processes.filter_map(|process| process["name"].as_str());
        names.filter(|found| found.starts_with(name)).count()
    };
    assert_eq!((named("backend-"), named("gateway-")), (1, 2), "{status}");
    assert!(run(&["--logs"]).contains("gateway-2"));
    assert!(run(&["--down"]).contains(" processes ended"));
}
