//! Benchmarks whose peers are named by environment variables, run with stand-ins: they work, report
//! a broken peer, and leave nothing behind.

use crate::support;

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use support::ports::free_port;
use support::{MAX_WAIT, Place, output, text};

/// Stands in for `plimsoll` in bench/tax.py: a ladder is a record, unless the file `broken` names a part of its folder.
const LADDER_STAND_IN: &str = r#"#!/usr/bin/env python3
import json, pathlib, sys
command, words = sys.argv[1], sys.argv[2:]
if command == "proxies":
    names = ["nginx", "envoy-tunnel"]
    print(json.dumps({"proxies": [{"name": name, "program": f"/usr/bin/{name}"} for name in names]}))
elif command == "ladder":
    folder = pathlib.Path(words[words.index("--out") + 1])
    with open("measured", "a") as file:
        print(folder.name, file=file)
    if pathlib.Path("broken").read_text() in folder.name:
        sys.exit("no such server")
    folder.mkdir()
    rungs = [{"name": name, "slices": [{"ok": 5, "errors": 0}]} for name in ("bare", "nginx", "first", "chain")]
    (folder / "ladder.json").write_text(json.dumps({"interrupted": False, "rungs": rungs}))
else:
    chain = words[words.index("--chain") + 1].split(",") if "--chain" in words else None
    cost = {"metric": "p50", "added": 5.0, "low": 4.0, "high": 6.0}
    chains = [chain] if chain else [["nginx"], ["second"], ["chain"]]
    print(json.dumps({"predictions": [{"chain": chain, "metrics": [cost]} for chain in chains]}))
"#;

const OURS: &str = env!("CARGO_BIN_EXE_plimsoll");

/// Runs the shortest form of a benchmark with these variables.
fn run_benchmark(place: &Place, name: &str, flags: &[&str], variables: &[(&str, &str)]) -> Output {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench");
    let mut command = Command::new("python3");
    command
        .arg(scripts.join(name))
        .args(flags)
        .args(["--reps", "1", "--seconds", "1", "--calls", "1000"])
        .current_dir(place.path("."))
        .env("PLIMSOLL", OURS)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .envs(variables.iter().copied());
    output(&mut command, MAX_WAIT)
}

fn write_script(place: &Place, name: &str, lines: &str) {
    let path = place.path(name);
    fs::write(&path, lines).expect("writable");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("ours");
}

#[test]
fn mosn_path_from_env() {
    let place = Place::new();
    let (listen, upstream) = (free_port(), free_port());
    fs::write(
        place.path("mosn.toml"),
        format!(
            "[[route]]\nname = \"mosn\"\nprotocol = \"bolt\"\n\
             listen = \"127.0.0.1:{listen}\"\nupstream = [\"127.0.0.1:{upstream}\"]\n"
        ),
    )
    .expect("writable");
    // The relaying process is a child of the started one, as with MOSN's start script.
    write_script(
        &place,
        "mosn.sh",
        &format!("#!/bin/sh\n{OURS} relay sidecar mosn.toml &\nwait\n"),
    );
    let ports = [
        ("MOSN_LISTEN", listen.to_string()),
        ("MOSN_UPSTREAM", upstream.to_string()),
    ];
    let run = |mosn: &str, ports: &[(&str, String)]| {
        let mut variables = vec![("MOSN", mosn)];
        variables.extend(ports.iter().map(|(name, port)| (*name, port.as_str())));
        let short = ["--sizes", "5000", "--callers", "10", "--megabytes", "1"];
        let flags = [&["--protocols", "bolt"][..], &short].concat();
        let ran = run_benchmark(&place, "sidecar.py", &flags, &variables);
        assert!(
            TcpStream::connect(("127.0.0.1", listen)).is_err(),
            "{mosn} was left behind"
        );
        (ran.status.code(), text(&ran.stdout), text(&ran.stderr))
    };
    let (code, said, problem) = run("./mosn.sh", &ports);
    assert_eq!(code, Some(0), "{problem}");
    let row = said.lines().find(|line| line.contains("bolt: MOSN"));
    assert!(said.contains("bolt: one sidecar, awake"), "{said}");
    assert!(row.is_some_and(|row| !row.contains("known")), "{said}");
    for (mosn, ports, words) in [
        ("./gone.sh", &ports[..], "no such program"),
        ("./mosn.sh", &[], "MOSN_LISTEN is not"),
        ("./mosn.sh", &ports[..1], "MOSN_UPSTREAM is not"),
        (
            "sh -c 'echo no such listener; exit 3'",
            &ports,
            "MOSN ended with 3",
        ),
        ("sh -c 'echo no such listener; exit 3'", &ports, "listener"),
        ("sleep 60", &ports, "after ten seconds"),
    ] {
        let (code, _, problem) = run(mosn, ports);
        assert_eq!(code, Some(1), "{mosn}: {problem}");
        assert!(problem.contains(words), "{mosn}: {problem}");
        assert!(!problem.contains("Traceback"), "{mosn}: {problem}");
    }
}

#[test]
fn sofaload_path_from_env() {
    let place = Place::new();
    // The arguments are those documented in bench/README.md.
    write_script(
        &place,
        "sofaload.sh",
        &format!(
            r#"#!/bin/sh
case "$*" in
"-n 1000 -c 16 -m 32 -t 1 -p sofarpc sofarpc://127.0.0.1:"*) load="-c 16 --clients 512 -n 1000" ;;
"-D 1 --qps=2000 -c 200 -t 1 -p sofarpc sofarpc://127.0.0.1:"*) load="-c 200 --rate 2000/s -n 1000" ;;
*) echo "not these: $*"; exit 2 ;;
esac
for url; do :; done
rm -rf stand-in
{OURS} bolt "sofa:${{url#sofarpc:}}" $load -q --out stand-in >/dev/null || exit 1
echo "requests: 1000 total, 1000 started, 1000 done, 1000 succeeded, 0 failed, 0 errored, 0 timeout"
"#
        ),
    );
    let run = |sofaload: &str| {
        let ran = run_benchmark(&place, "bolt.py", &[], &[("SOFALOAD", sofaload)]);
        (ran.status.code(), text(&ran.stdout), text(&ran.stderr))
    };
    let (code, said, problem) = run("./sofaload.sh");
    assert_eq!(code, Some(0), "{problem}");
    assert!(!said.contains("known"), "{said}");
    for (sofaload, words) in [
        ("./gone", "no such program"),
        ("echo 12 succeeded", "12 calls ok"),
        ("sh -c 'echo 1000 succeeded, 1 failed'", "1 failed"),
        ("false", "exit 1"),
    ] {
        let (code, _, problem) = run(sofaload);
        assert_eq!(code, Some(1), "{sofaload}: {problem}");
        assert!(problem.contains(words), "{sofaload}: {problem}");
    }
}

/// A ladder that fails is reported, the others go on, and a second start measures nothing else.
#[test]
fn tax_reports_failures_and_resumes() {
    let place = Place::new();
    write_script(&place, "plimsoll.py", LADDER_STAND_IN);
    let stand_in = place.path("plimsoll.py").display().to_string();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/tax.py");
    let run = |flags: &[&str], broken: &str| {
        fs::write(place.path("broken"), broken).expect("writable");
        let mut command = Command::new("python3");
        command
            .arg(&script)
            .args(["--protocols", "http", "--seconds", "1", "--keep", "kept"])
            .args(flags)
            .current_dir(place.path("."))
            .env("PLIMSOLL", &stand_in)
            .env("PYTHONDONTWRITEBYTECODE", "1");
        let ran = output(&mut command, MAX_WAIT);
        let problem = text(&ran.stderr);
        assert!(!problem.contains("Traceback"), "{problem}");
        let measured = place.read("measured");
        let measured: Vec<&str> = measured.lines().collect();
        (ran.status.code(), text(&ran.stdout), measured.join(" "))
    };
    let (code, said, measured) = run(&[], "-server");
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(measured, "http-off http-server http-mutual");
    for part in [
        "FAILED: http-server: no such server",
        "| nginx | +5.0 ± 1.0 µs |",
        "### failures",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let (code, said, measured) = run(&[], "nothing");
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(measured, "http-off http-server http-mutual http-server");
    let (code, said, _) = run(&["--closure", "2"], "chain-1");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("1 of 1 chains were as predicted"), "{said}");
    let (code, said, measured) = run(&["--closure", "2"], "nothing");
    assert_eq!(code, Some(0), "{said}");
    assert!(
        measured.ends_with("http-chain-1 http-chain-2 http-chain-1"),
        "{measured}"
    );
    // The stand-in claims a difference each time.
    let (code, said, measured) = run(&["--same", "2"], "nothing");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("claimed in 2 of 2"), "{said}");
    // One end of a tunnel alone is no rung.
    assert!(!said.contains("envoy-tunnel"), "{said}");
    // What was measured is not replaced.
    for (flags, part) in [
        (&["--rate", "9"][..], "a ladder of another plan"),
        (
            &["--keep", "other", "--budget", "0"],
            "the time of --budget is over",
        ),
    ] {
        let (code, said, again) = run(flags, "nothing");
        assert_eq!((code, again.len()), (Some(1), measured.len()), "{said}");
        assert!(said.contains(part), "{part}: {said}");
    }
}
