//! Ladders over servers that the ladder starts itself.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "tests wait in real time")]

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_model::comparisons::ladder::{AddedCost, LadderMetric, LadderRecord};
use plimsoll_model::runs::run::Run;
use plimsoll_stack::namespace::NetworkNamespace;
use rustix::process::{Pid, Signal, kill_process};

fn run_ladder(dir: &Path, ladder: &str) -> (Output, LadderRecord) {
    let output = command(dir, ladder).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let record = LadderRecord::load(&dir.join("ladder")).unwrap();
    (output, record)
}

fn command(dir: &Path, ladder: &str) -> Command {
    let file = dir.join("plan.toml");
    let plan = format!(
        r#"
name = "score"
[call.grpc]
method = "score.ScoreService/GetScore"
message = {{ json = "[0.1, 0.2]" }}
[load]
rate = "200/s"
warmup = "100ms"
[ladder]
slice = "300ms"
serve = ["score", "--delay", "2ms", "--workers", "1"]
{ladder}
"#
    );
    std::fs::write(&file, plan).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command
        .arg("ladder")
        .arg(&file)
        .arg("--out")
        .arg(dir.join("ladder"));
    command
}

#[test]
fn plaintext_tls_and_mtls_are_three_rungs() {
    let dir = tempfile::tempdir().unwrap();
    let (output, record) = run_ladder(
        dir.path(),
        "tls = [\"off\", \"server\", \"mutual\"]\nrounds = 10",
    );
    let names: Vec<&str> = record.rungs.iter().map(|r| r.name.as_str()).collect();
    assert_eq!(names, ["tls off", "tls server", "tls mutual"]);
    let securities: Vec<String> = (1..=3)
        .map(|rung| {
            let run = dir.path().join(format!("ladder/rung-{rung}/slice-10"));
            format!("{:?}", Run::load(&run).unwrap().header.security.unwrap())
        })
        .collect();
    assert_eq!(securities, ["Plaintext", "Tls", "MutualTls"]);
    for rung in &record.rungs {
        assert_eq!(rung.slices.len(), 10);
        assert!(rung.slices.iter().all(|s| s.errors == 0), "{rung:?}");
        assert!(rung.median(LadderMetric::P50).unwrap() >= 2_000.0);
    }
    let stdout = String::from_utf8(output.stdout).unwrap();
    for words in [
        "tls mutual adds to tls server",
        "tls mutual adds to tls off",
        "client CPU a call",
    ] {
        assert!(stdout.contains(words), "{stdout}");
    }
    let page = std::fs::read_to_string(dir.path().join("ladder/report.html")).unwrap();
    assert!(page.contains("What each rung adds"));
}

#[test]
fn equal_rungs_show_no_clear_difference() {
    let dir = tempfile::tempdir().unwrap();
    let (_, record) = run_ladder(dir.path(), "\"load.deadline\" = [\"5s\", \"6s\"]");
    assert_eq!(record.rungs.len(), 2);
    for metric in LadderMetric::ALL {
        if let AddedCost::Significant(d) = record.added_cost(1, 0, metric) {
            // By chance alone, one ladder in forty claims a difference.
            let first = record.rungs[0].median(metric).unwrap();
            assert!(d.shift.abs() < 0.25 * first, "{metric:?} {d:?}");
        }
    }
}

/// The paths one after the other, as in the bundled plan of hops.
const HOP_RUNGS: &str = "rungs = [{ network = \"localhost\" }, { network = \"namespaces\" }, \
    { network = \"namespaces\", tls = \"mutual\" }]\nrounds = 2";

/// Returns whether network namespaces can be created here; prints a note if not.
fn can_create_namespaces() -> bool {
    match NetworkNamespace::create() {
        Ok(_) => true,
        Err(error) => {
            let printed = format!("what a namespace adds is not tried out here: {error}");
            let _ = writeln!(std::io::stderr(), "{printed}");
            false
        }
    }
}

/// Returns the namespaces of ladders, and the devices that lead to them.
fn leftover_namespaces(pid: u32) -> Vec<String> {
    let names = |dir: &str| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .collect::<Vec<_>>()
    };
    let mine = [
        format!("plimsoll-{pid}"),
        format!("pl{pid}a"),
        format!("pl{pid}b"),
    ];
    [names("/run/netns"), names("/sys/class/net")]
        .concat()
        .into_iter()
        .filter(|name| mine.contains(name))
        .collect()
}

#[test]
fn namespaces_isolate_rungs_and_are_removed() {
    if !can_create_namespaces() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let child = command(dir.path(), HOP_RUNGS)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let record = LadderRecord::load(&dir.path().join("ladder")).unwrap();
    assert_eq!(record.skipped, []);
    let hosts: Vec<String> = (1..=3)
        .map(|rung| {
            let run = dir.path().join(format!("ladder/rung-{rung}/slice-02"));
            Run::load(&run).unwrap().header.target.unwrap()
        })
        .collect();
    assert!(hosts[0].starts_with("grpc://127.0.0.1:"), "{hosts:?}");
    assert!(hosts[1].starts_with("grpc://198.1"), "{hosts:?}");
    assert!(hosts[2].starts_with("grpcs://198.1"), "{hosts:?}");
    for rung in &record.rungs {
        assert!(rung.slices.iter().all(|s| s.errors == 0), "{rung:?}");
        assert!(rung.median(LadderMetric::P50).unwrap() >= 2_000.0);
        // The server's CPU is measured in a namespace, too.
        assert!(rung.median(LadderMetric::ServerCpu).is_some(), "{rung:?}");
    }
    assert_eq!(leftover_namespaces(pid), Vec::<String>::new());
}

#[test]
fn interrupt_removes_namespace() {
    if !can_create_namespaces() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut child = command(dir.path(), &HOP_RUNGS.replace("rounds = 2", "rounds = 100"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let slices = dir.path().join("ladder/rung-2");
    let end = Instant::now() + Duration::from_secs(30);
    while !slices.exists() {
        assert!(Instant::now() < end, "no slice in the namespace");
        thread::sleep(Duration::from_millis(20));
    }
    assert_ne!(leftover_namespaces(child.id()), Vec::<String>::new());
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(leftover_namespaces(child.id()), Vec::<String>::new());
    assert!(
        LadderRecord::load(&dir.path().join("ladder"))
            .unwrap()
            .interrupted
    );
}

#[test]
fn ladder_continues_without_namespace_permission() {
    let dir = tempfile::tempdir().unwrap();
    let programs = dir.path().join("bin");
    fs::create_dir(&programs).unwrap();
    let ip = programs.join("ip");
    fs::write(
        &ip,
        "#!/bin/sh\necho 'mount failed: Operation not permitted' >&2\nexit 1\n",
    )
    .unwrap();
    fs::set_permissions(&ip, fs::Permissions::from_mode(0o755)).unwrap();
    for (path, why) in [
        (programs.as_path(), "Operation not permitted"),
        (Path::new("/nowhere"), "iproute2"),
    ] {
        let _ = fs::remove_dir_all(dir.path().join("ladder"));
        let output = command(dir.path(), HOP_RUNGS)
            .env("PATH", path)
            .output()
            .unwrap();
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        );
        assert_eq!(output.status.code(), Some(0), "{err}");
        assert!(
            err.contains("network namespaces is not measured: ") && err.contains(why),
            "{err}"
        );
        assert!(
            out.contains("network namespaces, tls mutual was not measured"),
            "{out}"
        );
        let record = LadderRecord::load(&dir.path().join("ladder")).unwrap();
        assert_eq!((record.rungs.len(), record.skipped.len()), (1, 2));
        assert_eq!(record.rungs[0].slices.len(), 2);
        // Without any other axis left there is nothing to measure.
        let only = "network = [\"namespaces\"]\ntls = [\"off\", \"server\"]";
        let _ = fs::remove_dir_all(dir.path().join("ladder"));
        let output = command(dir.path(), only)
            .env("PATH", path)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
    }
}

#[test]
fn sidecar_cpu_and_server_memory_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (output, record) = run_ladder(
        dir.path(),
        "via = [\"direct\", \"one sidecar\", \"two sidecars\"]\nrounds = 2\n\"load.connections\" = [120]",
    );
    let names: Vec<&str> = record.rungs.iter().map(|r| r.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "connections 120, via direct",
            "connections 120, via one sidecar",
            "connections 120, via two sidecars"
        ]
    );
    for (i, rung) in record.rungs.iter().enumerate() {
        for slice in &rung.slices {
            assert_eq!(slice.errors, 0, "{rung:?}");
            assert!(slice.server_cpu_us_per_call.is_some(), "{rung:?}");
            assert_eq!(slice.sidecar_cpu_us_per_call.is_some(), i > 0, "{rung:?}");
            // A connection takes between a few kilobytes and a megabyte.
            let memory = slice.memory.server_bytes_per_connection.unwrap();
            assert!((1_000.0..1e6).contains(&memory), "{memory}");
        }
    }
    let stdout = String::from_utf8(output.stdout).unwrap();
    for words in ["proxy CPU a call", "server memory a connection"] {
        assert!(stdout.contains(words), "{stdout}");
    }
}

/// Returns the running child processes of `parent`.
fn children(parent: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
    let list = list.unwrap_or_default();
    list.split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect()
}

fn is_there(pid: &u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn killed_ladder_stops_servers_and_sidecars() {
    let dir = tempfile::tempdir().unwrap();
    let mut ladder = command(
        dir.path(),
        "via = [\"direct\", \"two sidecars\"]\nrounds = 1000",
    );
    let mut child = ladder
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_secs(300);
    // Two sidecars, and one server or several behind them.
    let started = loop {
        let started = children(child.id());
        if started.len() >= 3 {
            break started;
        }
        assert!(Instant::now() < end, "{started:?}");
        thread::sleep(Duration::from_millis(20));
    };
    child.kill().unwrap();
    child.wait().unwrap();
    while started.iter().any(is_there) {
        assert!(
            Instant::now() < end,
            "one of {started:?} outlived its ladder"
        );
        thread::sleep(Duration::from_millis(20));
    }
}
