//! Whole commands against the reference servers: files, exit codes, signals, variables.
//!
//! Machines that build are busy, so nothing here depends on how fast a call is.

mod support;

#[path = "../../plimsoll-plugin/tests/built/mod.rs"]
mod built;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use support::{Place, SCORE, SERVER_TLS, output_of_reader, signal, stderr_of, text, wait};

/// All files below a folder, as one text.
fn everything_in(dir: &Path) -> String {
    fs::read_dir(dir)
        .expect("a folder")
        .map(|entry| text(&fs::read(entry.expect("an entry").path()).expect("a file")))
        .collect()
}

#[test]
fn a_steady_run_over_mutual_tls_accounts_for_every_call() {
    let place = Place::new();
    place.expect(0, &["certs", "certs"]);
    let server = place.serve(&[
        "score",
        "--delay",
        "1ms",
        "--tls-cert",
        "certs/server.crt",
        "--tls-key",
        "certs/server.key",
        "--tls-client-ca",
        "certs/ca.crt",
    ]);
    let url = server.tls();
    let tls = [
        "--ca",
        "certs/ca.crt",
        "--cert",
        "certs/client.crt",
        "--key",
        "certs/client.key",
    ];
    let mut arguments = vec![
        "grpc",
        &url,
        "--rate",
        "200/s",
        "--warmup",
        "200ms",
        "--duration",
        "1s",
        "--out",
        "run",
        "--json",
        "-q",
    ];
    arguments.extend(SCORE);
    arguments.extend(tls);
    let run = place.expect_json(0, &arguments);
    assert_eq!(run["total"]["due"], 200, "{run}");
    assert_eq!(run["total"]["ok"], 200, "{run}");
    assert_eq!(run["security"], "mutual-tls");
    assert_eq!(run["count_check"]["matches"], true);
    assert_eq!(run["count_check"]["due"], 240);
    assert!(place.read("run/plan.toml").contains("rate = \"200/s\""));
    // Read again, it shows the same figures to the last digit.
    let again = place.expect_json(0, &["report", "run", "--json"]);
    assert_eq!(again["total"], run["total"]);
    assert_eq!(again["stages"], run["stages"]);
    // The same directory is not written to again.
    place.expect(1, &arguments);

    // Without its certificate the client reports that, by code.
    let mut arguments = vec![
        "grpc",
        &url,
        "--clients",
        "1",
        "--calls",
        "3",
        "--ca",
        "certs/ca.crt",
        "--out",
        "refused",
        "-q",
    ];
    arguments.extend(SCORE);
    let output = place.run(&arguments);
    assert_eq!(output.status.code(), Some(1));
    let printed = text(&output.stdout) + &text(&output.stderr);
    assert!(
        printed.contains("TLS_CLIENT_CERTIFICATE_REQUIRED"),
        "{printed}"
    );
}

const HALF_A_SECOND: [&str; 6] = [
    "--rate",
    "500/s",
    "--warmup",
    "100ms",
    "--duration",
    "500ms",
];

#[test]
fn ready_plans_run() {
    let place = Place::new();
    place.expect(0, &["certs", "certs"]);
    let score = place.serve(&[
        "score",
        "--delay",
        "1ms",
        "--tls-cert",
        "certs/server.crt",
        "--tls-key",
        "certs/server.key",
        "--tls-client-ca",
        "certs/ca.crt",
    ]);
    let orders = place.serve(&["orders", "--pool", "10"]);
    let bolt = place.serve(&["bolt"]);
    let http = place.serve(&["http"]);
    let llm = place.serve(&["llm", "--token-delay", "1ms"]);
    let echo = place.serve(&["echo"]);
    let files = place.serve(&[&["files"], &SERVER_TLS[..]].concat());
    built::c_example(&place.path("."));
    let plugin = place.serve(&["plugin", "x_example.so"]);
    let hold = place.serve(&[&["hold"], &SERVER_TLS[..]].concat());
    let plans = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plans");
    let mut seen = 0;
    // What plans name is relative to the folder above them.
    fs::create_dir(place.path("plans")).expect("writable");
    let rows = "instruments.csv";
    fs::copy(plans.join(rows), place.path("plans").join(rows)).expect("writable");
    for entry in fs::read_dir(plans).expect("plans/ is there") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let name = path
            .file_stem()
            .map(|name| name.to_string_lossy().into_owned());
        let name = name.expect("a name");
        let (target, shorter, calls): (_, &[&str], u64) = match name.as_str() {
            "score-steady" => (
                score.tls(),
                &[
                    "--rate",
                    "100/s",
                    "--warmup",
                    "100ms",
                    "--duration",
                    "500ms",
                ],
                50,
            ),
            // One rung of it; a small ladder is in identity.rs.
            "identity" | "identity-compressed" => (
                score.tls(),
                &[
                    "--ca",
                    "certs/ca.crt",
                    "--cert",
                    "certs/client.crt",
                    "--key",
                    "certs/client.key",
                    "--rate",
                    "20/s",
                    "--calls",
                    "6",
                ],
                6,
            ),
            "identity-openssl" => (
                format!("https://localhost:{}/bytes/1KiB", files.port),
                &["--ca", "certs/ca.crt", "--rate", "20/s", "--calls", "6"],
                6,
            ),
            "score-cold" => (score.tls(), &["--rate", "20/s", "--calls", "6"], 6),
            // Their size is their point: here from two processes each.
            "fleet-20000" | "fleet-100000" => (
                orders.plaintext(),
                &["--fleet", "40", "--calls", "2000", "--processes", "2"],
                2000,
            ),
            "orders-fleet" => (
                orders.plaintext(),
                &["--fleet", "20", "--calls", "2000"],
                2000,
            ),
            "orders-varied" => (
                orders.plaintext(),
                &["--rate", "200/s", "--warmup", "100ms", "--calls", "100"],
                100,
            ),
            "score-ladder" | "score-hops" | "score-find" => (
                score.tls(),
                &[
                    "--ca",
                    "certs/ca.crt",
                    "--cert",
                    "certs/client.crt",
                    "--key",
                    "certs/client.key",
                    "--rate",
                    "100/s",
                    "--duration",
                    "500ms",
                ],
                50,
            ),
            "sofa-echo" => (
                bolt.plaintext().replace("grpc://", "sofa://"),
                &HALF_A_SECOND,
                250,
            ),
            "http-search" | "http-ladder" | "http-sidecars" => (
                format!("http://127.0.0.1:{}", http.port),
                &["--rate", "200/s", "--warmup", "100ms", "--calls", "100"],
                100,
            ),
            "llm-chat" | "llm-sidecars" | "llm-talks" | "ws-sse" => (
                format!("http://127.0.0.1:{}", llm.port),
                &["--rate", "20/s", "--duration", "500ms"],
                if name == "llm-talks" { 40 } else { 10 },
            ),
            "plugin-echo" => (
                plugin.plaintext().replace("grpc://", "plugin://"),
                &HALF_A_SECOND,
                250,
            ),
            "echo-streams" => (echo.plaintext(), &["--rate", "20/s", "--calls", "10"], 10),
            "tls-new" | "tls-resumed" => (
                format!("https://localhost:{}/bytes/1KiB", files.port),
                &["--clients", "4", "--calls", "40", "--warmup", "300ms"],
                40,
            ),
            // One rung of each; whole sweeps are in tls.rs.
            "tls-sweep" | "tls-read-buffer" => (
                format!("https://localhost:{}/bytes/1KiB", files.port),
                &[
                    "--ca",
                    "certs/ca.crt",
                    "--clients",
                    "4",
                    "--calls",
                    "40",
                    "--warmup",
                    "300ms",
                ],
                40,
            ),
            "tls-hold" => (
                format!("tls://localhost:{}", hold.port),
                &["--connections", "50", "--duration", "500ms"],
                50,
            ),
            // In sessions.rs: they need two addresses.
            sessions if sessions.starts_with("sessions-") => continue,
            other => panic!("plans/{other}.toml is not run by this test"),
        };
        let path = path.display().to_string();
        let mut arguments = vec!["run", &path, "--target", &target, "--out", &name, "-q"];
        arguments.extend(shorter);
        // A plan with objectives may end with 90 or 99 on a busy machine.
        let code = place.run(&arguments).status.code();
        assert!(matches!(code, Some(0 | 90 | 99)), "{name}: {code:?}");
        let run = place.run_json(&name);
        assert_eq!(run["total"]["ok"], calls, "{name}: {run}");
        assert_eq!(run["count_check"]["matches"], true, "{name}");
        seen += 1;
    }
    assert!(seen > 4, "{seen} plans");
}

#[test]
fn a_bolt_run_ends_with_the_lines_that_sofarpcs_tools_print() {
    let place = Place::new();
    let bolt = place.serve(&["bolt", "--fail", "TIMEOUT=20%", "--fail", "SOFA_ERROR=20%"]);
    let target = bolt.plaintext().replace("grpc://", "sofa://");
    let output = place.run(&["bolt", &target, "--fleet", "4", "-n", "1000", "-q"]);
    assert_eq!(output.status.code(), Some(0));
    let printed = text(&output.stdout);
    let number = |before: &str, after: &str| -> u64 {
        let at = printed
            .find(before)
            .unwrap_or_else(|| panic!("no `{before}` in {printed}"));
        let rest = &printed[at + before.len()..];
        rest[..rest.find(after).expect(after)]
            .parse()
            .expect(before)
    };
    assert_eq!(number("requests: ", " total"), 1000);
    assert_eq!(number(" total, ", " started"), 1000);
    assert_eq!(number("started, ", " done"), 1000);
    let (ok, failed) = (
        number("done, ", " succeeded"),
        number("succeeded, ", " failed"),
    );
    assert_eq!(ok + failed, 1000, "{printed}");
    let (timeouts, sofa) = (number(", TIMEOUT ", ","), number("error header: ", "\n"));
    assert_eq!(timeouts + sofa, failed, "{printed}");
    assert_eq!(number("statuses: SUCCESS ", ","), ok + sofa);
    for line in [
        "finished in ",
        "traffic: ",
        "+/- sd",
        "time for request:",
        "time for connect:",
        "req/s ",
        "latency distribution",
        "     99% ",
    ] {
        assert!(printed.contains(line), "no `{line}` in {printed}");
    }
}

#[test]
fn cold_calls_are_kept_exported_and_read_back() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "1ms"]);
    let url = server.plaintext();
    let mut arguments = vec![
        "grpc",
        &url,
        "--cold",
        "--rate",
        "50/s",
        "--calls",
        "10",
        "--requests",
        "--out",
        "cold",
        "-q",
    ];
    arguments.extend(SCORE);
    let out = place.expect(0, &arguments);
    assert!(
        out.contains("t_connect") && out.contains("t_first_rpc") && out.contains("t_total"),
        "{out}"
    );
    place.expect(0, &["report", "cold", "--export", "lines", "cold.txt"]);
    let lines = place.read("cold.txt");
    assert_eq!(lines.lines().next(), Some("#TEST=02_coldconn"));
    assert_eq!(
        lines
            .lines()
            .filter(|l| l.contains("\"ok\":true") && l.contains("t_total_ms"))
            .count(),
        10
    );
    let back = place.expect_json(0, &["import", "cold.txt", "--out", "back", "--json"]);
    assert_eq!(back["total"]["ok"], 10);
    assert_eq!(back["source"], "imported");
    let both = place.expect_json(0, &["compare", "cold", "back", "--json"]);
    assert_eq!(both["enough_runs"], false);
    // One run given four times is not four runs.
    let words = [
        "compare",
        "--baseline",
        "cold",
        "./cold",
        "--candidate",
        "back",
    ];
    let output = place.run(&words);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr_of(&output).contains("./cold is given twice"));
    let output = place.run(&["report", "cold.txt"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr_of(&output).contains("plimsoll import"), "{output:?}");
    // A run without kept calls can't be exported, and says why.
    let output = place.run(&["report", "back", "--export", "lines", "x.txt"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("kept no record of its single calls"));
}

#[test]
fn objectives_decide_the_exit_code() {
    let place = Place::new();
    // Far above what a busy machine makes of a limit of 1 ms.
    let server = place.serve(&["score", "--delay", "100ms"]);
    let url = server.plaintext();
    for (objective, code, verdict) in [
        ("p50 < 10s", 0, "met"),
        ("p50 < 1ms", 99, "missed"),
        ("errors < 1%", 0, "met"),
        ("rate > 1000000/s", 99, "missed"),
        // 300 calls say nothing of one in ten thousand.
        ("p99.99 < 10s", 90, "not_supported"),
    ] {
        let out = format!("run {}", objective.replace('/', " "));
        let mut arguments = vec![
            "grpc",
            &url,
            "--clients",
            "100",
            "--calls",
            "300",
            "--objective",
            objective,
            "--out",
            &out,
            "--json",
            "-q",
        ];
        arguments.extend(SCORE);
        let run = place.expect_json(code, &arguments);
        assert_eq!(run["objectives"][0]["verdict"], verdict, "{objective}");
    }
}

#[test]
fn a_run_without_one_success_is_an_error() {
    let place = Place::new();
    let server = place.serve(&["orders"]);
    let url = server.plaintext();
    let mut arguments = vec![
        "grpc",
        &url,
        "--clients",
        "1",
        "--calls",
        "5",
        "--out",
        "run",
        "-q",
    ];
    arguments.extend(SCORE);
    let out = place.expect(1, &arguments);
    assert!(out.contains("UNIMPLEMENTED"), "{out}");
    // Nobody listens there any more: each cold call fails, by code.
    drop(server);
    let mut arguments = vec![
        "grpc", &url, "--cold", "--rate", "50/s", "--calls", "5", "--out", "gone", "-q",
    ];
    arguments.extend(SCORE);
    let out = place.expect(1, &arguments);
    assert!(out.contains("CONNECT_REFUSED"), "{out}");
    assert_eq!(place.run_json("gone")["total"]["errors"], 5);
}

#[test]
fn an_interrupted_run_is_written_and_ends_with_130() {
    for stop in [rustix::process::Signal::INT, rustix::process::Signal::TERM] {
        let place = Place::new();
        let server = place.serve(&["score", "--delay", "1ms"]);
        let url = server.plaintext();
        let mut arguments = vec![
            "grpc",
            &url,
            "--rate",
            "100/s",
            "--duration",
            "60s",
            "--out",
            "run",
            "--requests",
        ];
        arguments.extend(SCORE);
        let mut child = place
            .command(&arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("plimsoll starts");
        // The first line of progress says that a second is over.
        let mut progress = BufReader::new(child.stderr.take().expect("stderr is piped")).lines();
        progress.next().expect("a line").expect("text");
        signal(&child, stop);
        for _rest in progress.by_ref() {}
        assert_eq!(wait(&mut child), 130);
        let run = place.run_json("run");
        assert_eq!(run["state"], "aborted");
        assert_eq!(run["count_check"]["matches"], true);
        assert!(run["total"]["ok"].as_u64() > Some(50), "{run}");
    }
}

#[test]
fn a_server_stops_gracefully_and_reports_what_it_counted() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    let taken = place.run(&[
        "serve",
        "score",
        "--listen",
        &format!("127.0.0.1:{}", server.port),
    ]);
    assert_eq!(taken.status.code(), Some(1));
    assert!(text(&taken.stderr).contains("already in use"));
    let (code, rest) = server.stop();
    assert_eq!(code, 0);
    assert!(rest.contains("scored 0"), "{rest}");
}

#[test]
fn variables_and_the_env_file_stand_in_for_flags() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "1ms"]);
    fs::write(
        place.path(".env"),
        format!("DF_HOST=127.0.0.1\nDF_PORT={}\nN_RPS=1\nT_DURATION_SEC=1\nT_WARMUP_SEC=0\nPLIMSOLL_OUT=run\nTOKEN=hush\n", server.port),
    )
    .expect("writable");
    let mut command = place.command(&["grpc", "--quiet", "--metadata", "authorization: $TOKEN"]);
    // The process's variable wins over .env, and a flag's own over an alias.
    command
        .args(SCORE)
        .env("N_RPS", "100")
        .env("PLIMSOLL_DURATION", "500ms");
    let output = command.output().expect("plimsoll starts");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(place.run_json("run")["total"]["ok"], 50);
}

#[test]
fn a_flag_of_several_values_has_one_a_line_in_its_variable() {
    let place = Place::new();
    let env = "PLIMSOLL_METADATA=\"x-one: 1\nx-two: 2, and more\"\n";
    fs::write(place.path(".env"), env).expect("writable");
    let mut command = place.command(&["grpc", "grpc://127.0.0.1:1", "--rate", "1/s"]);
    command
        .args(SCORE)
        .args(["--calls", "1", "--dry-run"])
        .env("PLIMSOLL_OBJECTIVE", "p99 < 20ms\nerrors < 1%");
    let output = command.output().expect("plimsoll starts");
    let (plan, printed) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{printed}");
    assert!(
        printed.starts_with("from the environment: PLIMSOLL_METADATA, PLIMSOLL_OBJECTIVE\n"),
        "{printed}"
    );
    for line in [
        "x-one = \"1\"",
        "x-two = \"2, and more\"",
        "p99 = \"< 20ms\"",
        "errors = \"< 1%\"",
    ] {
        assert!(plan.contains(line), "{line}: {plan}");
    }
}

#[test]
fn secrets_stay_out_of_the_run_directory() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "1ms"]);
    let url = server.plaintext();
    let mut arguments = vec![
        "grpc",
        &url,
        "--clients",
        "1",
        "--calls",
        "5",
        "--out",
        "run",
        "--requests",
        "-q",
        "--metadata",
        "authorization: Bearer hush",
        "--save-plan",
        "saved.toml",
    ];
    arguments.extend(SCORE);
    place.expect(0, &arguments);
    let kept = everything_in(&place.path("run")) + &place.read("saved.toml");
    assert!(!kept.contains("hush"), "{kept}");
    assert!(kept.contains("PLIMSOLL_METADATA_AUTHORIZATION"), "{kept}");
    // The saved plan asks for the secret, and then is the same.
    let output = place.run(&["run", "saved.toml", "--out", "again", "-q"]);
    assert_eq!(output.status.code(), Some(2));
    let mut command = place.command(&["run", "run/plan.toml", "--out", "again", "-q"]);
    let output = command
        .env("PLIMSOLL_METADATA_AUTHORIZATION", "Bearer hush")
        .output()
        .expect("plimsoll starts");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(place.read("again/plan.toml"), place.read("run/plan.toml"));
}

#[test]
fn a_fleet_reports_its_progress_by_calls() {
    let place = Place::new();
    let server = place.serve(&["orders"]);
    let url = server.plaintext();
    let output = place.run(&[
        "grpc",
        &url,
        "-m",
        "orders.OrderService/Submit",
        "-d",
        r#"{"price": 5}"#,
        "--fleet",
        "50",
        "--calls",
        "5000",
        "--progress-every",
        "1000",
        "--out",
        "run",
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let printed = text(&output.stderr);
    assert!(printed.contains("5,000 of 5,000 calls"), "{printed}");
    let run = place.run_json("run");
    assert_eq!(
        (&run["total"]["ok"], &run["connections"], &run["clients"]),
        (&5000.into(), &50.into(), &50.into())
    );
}

#[test]
fn what_is_no_file_is_called_what_it_is_and_not_waited_for() {
    let place = Place::new();
    fs::create_dir(place.path("folder")).expect("a folder");
    let fifo = place.path("fifo.proto");
    let made = Command::new("mkfifo").arg(fifo).status();
    assert!(made.expect("mkfifo is there").success());
    let imports = "syntax = \"proto3\";\nimport \"fifo.proto\";\n";
    fs::write(place.path("imports.proto"), imports).expect("writable");
    let load = ["--clients", "1", "--calls", "1", "-q"];
    let grpc = ["grpc", "grpc://127.0.0.1:1", "-m", "a.B/C"];
    let bolt = ["bolt", "sofa://127.0.0.1:1"];
    for (command, flags, problem) in [
        (
            &bolt[..],
            ["--data", "@folder"],
            "--data: can't read folder: a folder, not a file",
        ),
        (&bolt, ["--content", "@folder"], "a folder, not a file"),
        (&grpc, ["--data", "@folder"], "a folder, not a file"),
        (&grpc, ["--proto", "imports.proto"], "a FIFO, not a file"),
        (
            &grpc,
            ["--data", "@-"],
            "@-: can't read stdin: a folder, not a file",
        ),
        (
            &bolt,
            ["--data", "@-"],
            "@-: can't read stdin: a folder, not a file",
        ),
    ] {
        let class: &[&str] = match flags[0] {
            "--content" => &["--class", "a.B"],
            _ => &[],
        };
        let mut command = place.command(&[command, &flags, class, &load].concat());
        command.stdin(fs::File::open(place.path("folder")).expect("a folder"));
        let output = output_of_reader(&mut command, Duration::from_secs(30));
        let said = stderr_of(&output);
        assert!(
            !output.status.success() && said.contains(problem),
            "{flags:?}: {said}"
        );
        assert!(!said.contains("os error"), "{said}");
    }
}

#[test]
fn a_server_is_ready_when_it_answers_200_or_takes_a_connection() {
    let place = Place::new();
    let files = place.serve(&["files"]);
    let address = files.address();
    place.expect(0, &["check", "ready", &format!("tcp://{address}")]);
    let there = format!("http://{address}/bytes/1KiB");
    place.expect(0, &["check", "ready", &there, "--within", "30s"]);
    let output = place.run(&["check", "ready", &format!("http://{address}/not-there")]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr_of(&output));
    assert!(
        stderr_of(&output).contains("was answered 404"),
        "{}",
        stderr_of(&output)
    );
}
