//! Profiles of servers whose hot functions are known: `burner.c`, compiled here.
//!
//! Where this machine's kernel forbids sampling, or has no perf, the tests check the error instead.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::support;

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::{MAX_WAIT, Place, Server, output_watched, stderr_of, text};

/// Returns a server with `hot_function`, and with `added_function` if that is given.
fn burner(place: &Place, flags: &[&str]) -> Server {
    let program = place.path(&format!("burner{}", flags.len()));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reports/profile/burner.c");
    let built = Command::new("cc")
        // Without optimisation every function has a frame, innermost ones too.
        .args(["-O0", "-pthread", "-o"])
        .args([&program, &source])
        .args(flags)
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", text(&built.stderr));
    Server::start(&mut Command::new(program))
}

/// Returns the error that a profile has to end with on this machine; `None`: sampling works here.
fn expected_error() -> Option<&'static str> {
    static FOUND: OnceLock<Option<&str>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let tried = Command::new("perf")
            .args(["record", "-e", "cpu-clock", "-o"])
            .arg(dir.path().join("data"))
            .arg("true")
            .output();
        match tried {
            Ok(output) if output.status.success() => None,
            Ok(_) => Some("kernel.perf_event_paranoid is"),
            Err(_) => Some("linux-perf"),
        }
    })
}

/// Runs a command that takes a profile. Returns its document; `None` after checking the error of a machine on which
/// nothing can be sampled.
#[track_caller]
fn profiled(place: &Place, arguments: &[&str]) -> Option<Value> {
    if let Some(error) = expected_error() {
        let output = place.run(arguments);
        let said = stderr_of(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(error), "{said}");
        return None;
    }
    Some(place.expect_json(0, arguments))
}

fn write_plan(place: &Place, target: &str, more: &str) -> PathBuf {
    let plan = format!(
        "target = \"{target}\"\n[call.http]\npath = \"/\"\n[load]\nrate = \"100/s\"\n\
         duration = \"4s\"\nconnections = 4\n{more}"
    );
    let path = place.path("plan.toml");
    fs::write(&path, plan).unwrap();
    path
}

/// Returns the functions of an end with the most samples of their own.
fn functions<'a>(profile: &'a Value, end: &str) -> Vec<&'a str> {
    let all = profile[end]["functions"].as_array().unwrap();
    all.iter().map(|f| f["name"].as_str().unwrap()).collect()
}

#[test]
fn hot_function_has_greatest_share() {
    let place = Place::new();
    let server = burner(&place, &[]);
    let sampling = "warmup = \"500ms\"\n[watch]\nprofile = \"both\"\nprofile_hz = 997";
    write_plan(&place, &format!("http://{}", server.address()), sampling);
    let Some(document) = profiled(&place, &["run", "plan.toml", "--out", "run", "--json"]) else {
        return;
    };
    let profile = &support::only_run(&document)["profile"];
    assert_eq!(functions(profile, "server")[0], "hot_function", "{profile}");
    let hot = &profile["server"]["functions"][0];
    let share: Vec<f64> = serde_json::from_value(hot["self_share"].clone()).unwrap();
    assert!(
        share[0] < share[1] && share[1] < share[2] && share[1] > 0.5,
        "{hot}"
    );
    assert!(
        profile["server"]["samples"].as_u64().unwrap() > 100,
        "{profile}"
    );
    assert!(
        profile["server"]["sampler_cpu_us"].as_u64().is_some(),
        "{profile}"
    );
    assert!(
        profile["client"]["samples"].as_u64().unwrap() > 0,
        "{profile}"
    );
    // What was called has its callers below it.
    let folded = place.read("run/profile-server.folded");
    assert!(folded.contains(";handle_request;hot_function "), "{folded}");

    // Everything is in the directory: the server may be gone, and nothing is sampled again.
    drop(server);
    let shown = place.expect(0, &["report", "run"]);
    assert!(shown.contains("CPU time of the server"), "{shown}");
    let line = shown.lines().find(|line| line.starts_with("hot_function"));
    assert!(line.is_some_and(|line| line.contains(" – ")), "{shown}");
    assert!(
        shown.contains("samples at 997 Hz") && shown.contains("the sampler took"),
        "{shown}"
    );
    place.expect(0, &["report", "run", "--html", "page.html"]);
    let page = place.read("page.html");
    assert!(page.contains("<title>hot_function ("), "no flame graph");
    assert!(!page.contains("<script"), "the page has no scripts");
    let left = fs::read_dir(place.path("run"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    let left: Vec<String> = left
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    assert!(!left.iter().any(|name| name.contains(".data")), "{left:?}");
}

#[test]
fn samples_that_perf_could_not_read_are_noted() {
    if expected_error().is_some() {
        return;
    }
    let place = Place::new();
    let server = burner(&place, &[]);
    let sampling = "[watch]\nprofile = \"server\"\nprofile_hz = 997";
    write_plan(&place, &format!("http://{}", server.address()), sampling);
    // It names the functions of the first samples, and fails then.
    let paths = std::env::var_os("PATH").unwrap();
    let failing = format!(
        "#!/bin/sh\nPATH='{}'\n[ \"$1\" = script ] || exec perf \"$@\"\n\
         perf \"$@\" | head -n 2000\necho corrupt >&2\nexit 3\n",
        paths.display()
    );
    fs::create_dir(place.path("bin")).unwrap();
    let program = place.path("bin/perf");
    fs::write(&program, failing).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let mut searched = vec![place.path("bin")];
    searched.extend(std::env::split_paths(&paths));
    let output = place
        .command(&["run", "plan.toml", "--out", "run"])
        .env("PATH", std::env::join_paths(searched).unwrap())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr_of(&output));
    let shown = place.expect(0, &["report", "run"]);
    let shown = shown.split_whitespace().collect::<Vec<&str>>().join(" ");
    assert!(shown.contains("not all samples could be read"), "{shown}");
    assert!(shown.contains("corrupt"), "{shown}");
}

#[test]
fn differential_names_added_function() {
    let place = Place::new();
    let (plain, slower) = (burner(&place, &[]), burner(&place, &["-DWITH_ADDED"]));
    let rungs = format!(
        "[watch]\nprofile = \"server\"\nprofile_hz = 997\n[ladder]\nbatch = 20\n\
         [[ladder.rungs]]\nname = \"plain\"\ntarget = \"http://{}\"\n\
         [[ladder.rungs]]\nname = \"slower\"\ntarget = \"http://{}\"\n",
        plain.address(),
        slower.address()
    );
    write_plan(&place, &format!("http://{}", plain.address()), &rungs);
    let Some(document) = profiled(
        &place,
        &["ladder", "plan.toml", "--out", "ladder", "--json"],
    ) else {
        return;
    };
    let profiles = &document["ladder"]["profiles"];
    let compared = &profiles["differences"][0];
    assert_eq!(compared["rung"], "slower", "{profiles}");
    let added = &compared["functions"][0];
    assert_eq!(added["name"], "added_function", "{compared}");
    assert!(
        added["low"].as_f64().unwrap() > 0.0 && added["first"] == 0.0,
        "{added}"
    );
    assert_eq!(compared["unit"], "us_per_call", "{compared}");
    for (rung, profile) in profiles["rungs"].as_array().unwrap().iter().enumerate() {
        let is_there = functions(profile, "server").contains(&"added_function");
        assert_eq!(is_there, rung == 1, "{profile}");
    }
    let shown = place.expect(0, &["report", "ladder"]);
    assert!(shown.contains("slower and plain"), "{shown}");
    assert!(
        shown.lines().any(|line| line.starts_with("added_function")),
        "{shown}"
    );
    place.expect(0, &["report", "ladder", "--html", "page.html"]);
    let page = place.read("page.html");
    assert!(
        page.contains("what slower adds to plain"),
        "no differential"
    );
    assert!(page.contains("<title>added_function ("), "no flame graph");
}

#[test]
fn shared_process_is_refused_in_batches() {
    let place = Place::new();
    let server = burner(&place, &[]);
    let target = format!("http://{}", server.address());
    let rungs = format!(
        "[watch]\nprofile = \"server\"\n[ladder]\nbatch = 20\n[[ladder.rungs]]\nname = \"one\"\n\
         target = \"{target}\"\n[[ladder.rungs]]\nname = \"two\"\ntarget = \"{target}\"\n"
    );
    write_plan(&place, &target, &rungs);
    let output = place.run(&["ladder", "plan.toml"]);
    let said = stderr_of(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("served by the same process"), "{said}");
    assert!(said.contains("--slice 2s"), "{said}");
}

#[test]
fn missing_perf_is_an_error_before_any_load() {
    let place = Place::new();
    let server = burner(&place, &[]);
    let target = format!("http://{}", server.address());
    let arguments = [
        "http",
        &target,
        "--profile",
        "--out",
        "run",
        "--clients",
        "1",
        "-n",
        "5",
    ];
    let output = place
        .command(&arguments)
        .env("PATH", "/nonexistent")
        .output()
        .unwrap();
    let said = stderr_of(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("`perf` was not found") && said.contains("linux-perf"),
        "{said}"
    );
    assert!(!place.path("run").exists());
}

#[test]
fn interrupted_run_keeps_its_profile() {
    let place = Place::new();
    let server = burner(&place, &[]);
    let target = format!("http://{}", server.address());
    let arguments = [
        "http",
        &target,
        "--profile=server",
        "--out",
        "run",
        "--rate",
        "100/s",
        "--duration",
        "10m",
    ];
    if let Some(error) = expected_error() {
        assert!(stderr_of(&place.run(&arguments)).contains(error));
        return;
    }
    let (intervals, is_stopped) = (place.path("run/intervals.jsonl"), Cell::new(false));
    let output = output_watched(
        place.command(&arguments).stdin(Stdio::null()),
        MAX_WAIT,
        |child| {
            let text = fs::read_to_string(&intervals).unwrap_or_default();
            if text.lines().count() >= 2 && !is_stopped.replace(true) {
                support::signal(child, Signal::INT);
            }
        },
    );
    assert_eq!(output.status.code(), Some(130), "{}", stderr_of(&output));
    assert!(
        place
            .read("run/profile-server.folded")
            .contains("hot_function")
    );
}

/// Returns the process id of perf that `parent` has started.
fn sampler_of(parent: &Child) -> Option<Pid> {
    let children = fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| {
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let (head, rest) = stat.rsplit_once(')')?;
        let (pid, name) = head.split_once(" (")?;
        let of: u32 = rest.split_whitespace().nth(1)?.parse().ok()?;
        (of == parent.id() && name == "perf").then(|| pid.parse().ok())?
    });
    children.filter_map(Pid::from_raw).next()
}

#[test]
fn run_outlives_its_sampler() {
    let place = Place::new();
    let server = burner(&place, &[]);
    let target = format!("http://{}", server.address());
    let arguments = [
        "http",
        &target,
        "--profile",
        "--out",
        "run",
        "--rate",
        "50/s",
        "--duration",
        "20s",
    ];
    if let Some(error) = expected_error() {
        assert!(stderr_of(&place.run(&arguments)).contains(error));
        return;
    }
    let intervals = place.path("run/intervals.jsonl");
    let is_killed = Cell::new(false);
    let output = output_watched(
        place.command(&arguments).stdin(Stdio::null()),
        MAX_WAIT,
        |child| {
            let has_begun = fs::metadata(&intervals).is_ok_and(|file| file.len() > 0);
            if has_begun
                && !is_killed.get()
                && let Some(pid) = sampler_of(child)
            {
                is_killed.set(kill_process(pid, Signal::KILL).is_ok());
            }
        },
    );
    let said = stderr_of(&output);
    assert!(is_killed.get(), "{said}");
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("the sampler ended early"), "{said}");
    let profile: Value = serde_json::from_str(&place.read("run/profile.json")).unwrap();
    assert!(
        profile["ends"]["server"]["notes"]
            .to_string()
            .contains("ended early"),
        "{profile}"
    );
}
