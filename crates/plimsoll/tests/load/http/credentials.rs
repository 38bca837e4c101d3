//! Headers and metadata whose value is the output of a command that runs periodically.

use std::fs;

use super::{run_http, url};
use crate::support::peers::python;
use crate::support::{Place, Server, stderr_of};

/// A command that prints a higher number each time.
const COUNTS: &str = "n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) > n; echo \"Bearer $n\"";

#[test]
fn header_uses_latest_command_output() {
    let place = Place::new();
    let server = place.serve(&["http"]);
    let header = format!("authorization: {COUNTS}");
    for version in ["1.1", "2"] {
        let _ = fs::remove_file(place.path("n"));
        let flags = ["--header-from-command", &header, "--http-version", version];
        let load = ["--refresh", "1s", "--clients", "1", "--duration", "3500ms"];
        let run = run_http(&place, 0, &url(&server, "/"), &[&flags[..], &load].concat());
        assert_eq!(run["total"]["errors"], 0, "{run}");
        // The command runs once for the plan and then every second, later on a busy machine.
        let ran: u32 = place.read("n").trim().parse().unwrap();
        assert!((2..=5).contains(&ran), "{version}: {ran}");
        // The plan has the command, but nothing of its output.
        let plan = place.read("run/plan.toml");
        assert!(
            plan.contains("refresh = \"1s\"") && !plan.contains("Bearer 0"),
            "{plan}"
        );
    }
}

#[test]
fn command_value_is_sent_and_empty_output_rejected() {
    let place = Place::new();
    let server = Server::start(&mut python(&place, "llm_server.py"));
    let url = format!("http://{}", server.address());
    let fixed = [
        "llm",
        &url,
        "--model",
        "m",
        "--clients",
        "1",
        "--calls",
        "3",
        "-q",
        "--out",
        "run",
    ];
    let run = |command: &str| {
        let _ = fs::remove_dir_all(place.path("run"));
        let header = format!("authorization: {command}");
        place.run(&[&fixed[..], &["--header-from-command", &header]].concat())
    };
    let good = run("echo Bearer sk-7f3a9c");
    assert_eq!(good.status.code(), Some(0), "{}", stderr_of(&good));
    for (command, problem) in [
        ("exit 3", "ended with exit status: 3: run it in a shell"),
        (
            "printf 'C%sY' ANAR >&2; exit 4",
            "ended with exit status: 4: run it in a shell",
        ),
        ("true", "it printed nothing"),
        ("printf 'a\\nb'", "not one line of printable ASCII"),
    ] {
        let refused = run(command);
        assert_eq!(refused.status.code(), Some(2), "{command}");
        assert!(
            stderr_of(&refused).contains(problem),
            "{}",
            stderr_of(&refused)
        );
        // What a command writes to stderr is not shown.
        assert!(!stderr_of(&refused).contains("CANARY"), "{command}");
    }
    let grpc = place.serve(&["score"]);
    let call = crate::support::SCORE;
    let flags = [
        "--metadata-from-command",
        "authorization: echo Bearer x",
        "--calls",
        "3",
    ];
    let url = grpc.plaintext();
    let fixed = ["grpc", &url, "--clients", "1", "-q", "--out", "over-grpc"];
    place.expect(0, &[&fixed[..], &call, &flags].concat());
}

/// The value of one field is renewed every second; sockets have the session's token instead.
#[test]
fn session_headers_reach_requests_and_upgrades() {
    let place = Place::new();
    let mut command = python(&place, "websockets_server.py");
    let mut server = Server::start(command.env("TENANT", "7"));
    let api = format!("session://{}", server.address());
    let socket = format!("ws://{}", server.next_address());
    let to = ["session", &api, "--socket", &socket, "--out", "run", "-q"];
    let load = ["--clients", "2", "--duration", "3500ms"];
    let printing = "authorization: date +%s.%N";
    let refreshed = ["--header-from-command", printing, "--refresh", "1s"];
    let flags = [&to[..], &load, &["-H", "x-tenant: 7"], &refreshed].concat();
    place.expect(0, &flags);
    let run = place.run_json("run");
    assert_eq!(run["total"]["errors"], 0, "{run}");
    // The command runs once for the plan and then every second, later on a busy machine.
    let keys = place.read("keys").lines().count();
    assert!((2..=5).contains(&keys), "{keys}");
    let plan = place.read("run/plan.toml");
    assert!(
        plan.contains("[call.session.headers") && plan.contains("refresh = \"1s\""),
        "{plan}"
    );
    for (header, problem) in [
        ("content-type: a", "set by sessions themselves"),
        ("sec-websocket-key: a", "set by the WebSocket handshake"),
        ("x-a: {{row.b}}", "needs rows"),
    ] {
        let refused = place.run(&[&to[..], &["--clients", "1", "-H", header]].concat());
        assert_eq!(refused.status.code(), Some(2), "{header}");
        let printed = stderr_of(&refused);
        assert!(printed.contains(problem), "{printed}");
    }
}

#[test]
fn bolt_header_entry_uses_latest_command_output() {
    let place = Place::new();
    let server = place.serve(&["bolt"]);
    let url = format!("sofa://{}", server.address());
    let bolt = |flags: &[&str]| {
        let _ = fs::remove_dir_all(place.path("run"));
        let fixed = ["bolt", &url, "--clients", "1", "-q", "--out", "run"];
        let ended = place.run(&[&fixed[..], flags].concat());
        assert_eq!(ended.status.code(), Some(0), "{}", stderr_of(&ended));
        let run = place.run_json("run");
        assert_eq!(run["total"]["errors"], 0, "{run}");
        let of = |key: &str| run["total"][key].as_u64().unwrap();
        (of("bytes_sent"), of("ok"))
    };
    let (bytes, calls) = bolt(&["--calls", "5", "--header", "Token: short"]);
    assert_eq!(bytes % calls, 0);
    let plan = place.read("run/plan.toml");
    // Values of fields with secret-looking names are kept out of the run.
    assert!(
        plan.contains("[call.bolt.header.Token]") && !plan.contains("short"),
        "{plan}"
    );
    // The output is longer from the second time on.
    let prints = "Token: if [ -e n ]; then echo much-longer; else touch n; echo short; fi";
    let flags = [
        "--header-from-command",
        prints,
        "--refresh",
        "1s",
        "--duration",
        "3500ms",
    ];
    let (more, ended) = bolt(&flags);
    assert!(
        more > ended * (bytes / calls),
        "{more} bytes of {ended} calls"
    );
    assert!(
        more < ended * (bytes / calls + 6),
        "{more} bytes of {ended} calls"
    );
    let plan = place.read("run/plan.toml");
    assert!(plan.contains("refresh = \"1s\""), "{plan}");
    let empty = ["--calls", "1", "--header-from-command", "Token: true"];
    let refused = place.run(&[&["bolt", &url, "--clients", "1"], &empty[..]].concat());
    assert_eq!(refused.status.code(), Some(2));
    let printed = stderr_of(&refused);
    assert!(printed.contains("it printed nothing"), "{printed}");
}

#[test]
fn only_valid_plans_run_commands() {
    let place = Place::new();
    let header = "[call.http.headers]\nx = { command = \"touch ran; echo 1\" }";
    let plan = |rest: &str| format!("target = \"http://127.0.0.1:1/\"\n{header}\n{rest}\n");
    let load = "[load]\nclients = 1\ncalls = 1";
    for wrong in [
        plan(&format!("{load}\n[objective]\np99 = \"< x\"")),
        plan(&format!("{load}\n[watch]\npid = 2147483647")),
        plan("[load]\nclients = 0\ncalls = 1"),
        plan(&format!(
            "{load}\n[lanes.a]\n[lanes.b]\nobjective.p99 = \"< x\""
        )),
    ] {
        fs::write(place.path("plan.toml"), &wrong).unwrap();
        let refused = place.run(&["run", "plan.toml", "--out", "run"]);
        assert_eq!(refused.status.code(), Some(2), "{wrong}");
        assert!(!place.path("ran").exists(), "{wrong}");
    }
}

#[test]
fn plan_commands_run_only_in_real_runs() {
    let place = Place::new();
    let server = place.serve(&["http"]);
    let target = url(&server, "/");
    let command = "touch ran; echo Bearer x";
    let plan = format!(
        "target = \"{target}\"\n[call.http.headers]\nauthorization = {{ command = \"{command}\" }}\n\
         [load]\nclients = 1\ncalls = 3\n[ladder]\n[[ladder.rung]]\nname = \"a\"\n[[ladder.rung]]\nname = \"b\"\n"
    );
    fs::write(place.path("plan.toml"), plan).unwrap();
    let header = format!("authorization: {command}");
    let typed = [
        "http",
        &target,
        "--clients",
        "1",
        "--calls",
        "1",
        "--header-from-command",
        &header,
    ];
    for shown in [
        &["run", "plan.toml", "--dry-run"][..],
        &["run", "plan.toml", "--dry-run", "--json"],
        &["run", "plan.toml", "--save-plan", "saved.toml", "--dry-run"],
        &["find", "plan.toml", "--dry-run"],
        &["ladder", "plan.toml", "--dry-run"],
        &[&typed[..], &["--dry-run"]].concat(),
        &["slurm", "plan.toml"],
        &["kubernetes", "plan.toml"],
    ] {
        let ended = place.run(shown);
        assert!(!place.path("ran").exists(), "{shown:?}");
        assert!(
            !stderr_of(&ended).contains("running the plan's command"),
            "{shown:?}"
        );
    }
    let ended = place.run(&["run", "plan.toml", "--out", "run"]);
    assert_eq!(ended.status.code(), Some(0), "{}", stderr_of(&ended));
    assert!(place.path("ran").exists());
    let printed = stderr_of(&ended);
    let announced = format!("running the plan's command: {command}");
    assert_eq!(printed.matches(&announced).count(), 1, "{printed}");
    fs::remove_file(place.path("ran")).unwrap();
    for read in [
        &["report", "run"][..],
        &["report", "run", "--json"],
        &["report", "run", "--html", "page.html"],
    ] {
        place.expect(0, read);
        assert!(!place.path("ran").exists(), "{read:?}");
    }
    // Several processes run the command only once.
    let spread = ["--processes", "2", "--clients", "2", "--out", "spread"];
    let ended = place.run(&[&["run", "plan.toml"][..], &spread].concat());
    let printed = stderr_of(&ended);
    assert_eq!(printed.matches(&announced).count(), 1, "{printed}");
}

#[test]
fn env_file_cannot_run_commands() {
    let place = Place::new();
    let server = place.serve(&["http"]);
    let target = url(&server, "/");
    for file in [".env", ".env.loadtest"] {
        let lines = "PLIMSOLL_HEADER_FROM_COMMAND=\"authorization: touch ran; echo x\"\nPLIMSOLL_CODEC=evil.so\n";
        fs::write(place.path(file), lines).unwrap();
        let load = ["http", &target, "--clients", "1", "--calls", "1"];
        for refused in [&[&load[..], &["--dry-run"]].concat(), &load.to_vec()] {
            let ended = place.run(refused);
            let printed = stderr_of(&ended);
            assert_eq!(ended.status.code(), Some(2), "{printed}");
            assert!(
                printed.contains(&format!("{file}: PLIMSOLL_HEADER_FROM_COMMAND")),
                "{printed}"
            );
            assert!(printed.contains("a file can't set it"), "{printed}");
            assert!(!printed.contains("touch"), "{printed}");
        }
        // Commands without such a flag are told what is ignored, and work.
        place.expect(0, &["--version"]);
        let ended = place.run(&["certs", &format!("certs{file}")]);
        assert_eq!(ended.status.code(), Some(0), "{}", stderr_of(&ended));
        assert!(
            stderr_of(&ended).contains("ignored"),
            "{}",
            stderr_of(&ended)
        );
        let run = format!("run{file}");
        let own = place.run(
            &[
                &load[..],
                &["--header-from-command", "a: echo x", "--out", &run, "-q"],
            ]
            .concat(),
        );
        assert_eq!(own.status.code(), Some(0), "{}", stderr_of(&own));
        assert!(!place.path("ran").exists());
        fs::remove_file(place.path(file)).unwrap();
    }
}
