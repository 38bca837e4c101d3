//! Machines that are inadequate for a load: full disks, too few descriptors.

use super::*;

/// Runs `plimsoll` with `arguments` under a limit set by a shell.
fn command_under_limit(place: &Place, limit: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("{limit}; exec \"$0\" \"$@\"")])
        .arg(env!("CARGO_BIN_EXE_plimsoll"))
        .args(arguments)
        .current_dir(place.path(""));
    command
}

/// The file size limit simulates a disk that fills up: writes fail midway. Every user may set it,
/// and nothing else is affected.
#[test]
fn file_size_limit_leaves_partial_run() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "1ms"]);
    let url = server.plaintext();
    let flags = [
        "--rate",
        "1000/s",
        "--duration",
        "3s",
        "--requests",
        "--out",
        "run",
    ];
    // 16 blocks of 512 bytes.
    let limit = "ulimit -f 16";
    let output = run_to_end(&mut command_under_limit(
        &place,
        limit,
        &score_load(&url, &flags),
    ));
    let said = stderr_of(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("the run directory can't be written any more"),
        "{said}"
    );
    assert!(said.contains("File too large"), "{said}");
    assert!(said.contains("ulimit -f unlimited"), "{said}");
    // All measurements are shown.
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains("3,000 scheduled"), "{table}");
    assert!(said.contains("run/"), "which file: {said}");
    // The data written before is a readable run that says that it is partial.
    let run = place.expect_run(0, &["report", "run", "--json"]);
    assert_eq!(run["state"], "partial", "{run}");
}

/// Runs `plimsoll grpc` with its run directory `full/run` on a disk of 32 KiB, after applying
/// `filling` to it. Returns `None` if this user may not mount one.
fn run_on_small_disk(place: &Place, filling: &str, url: &str, flags: &[&str]) -> Option<Output> {
    fs::create_dir(place.path("full")).expect("a new folder");
    let script =
        format!("mount -t tmpfs -o size=32k tmpfs full || exit 77; {filling}; exec \"$0\" \"$@\"");
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", &script])
        .arg(env!("CARGO_BIN_EXE_plimsoll"))
        .args(score_load(url, &[flags, &["--out", "full/run"]].concat()))
        .current_dir(place.path(""));
    let output = run_to_end(&mut command);
    let printed = stderr_of(&output);
    if output.status.code() == Some(77) || printed.contains("unshare failed") {
        print_uncaptured(format_args!(
            "NOT TRIED: this user may not mount a small disk ({printed}); the limit of file sizes stands for it in the test beside this one"
        ));
        return None;
    }
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("No space left on device"), "{printed}");
    assert!(printed.contains("full/run"), "{printed}");
    assert!(
        printed.contains("help: ") && printed.contains("--out"),
        "{printed}"
    );
    Some(output)
}

/// On a disk that is full the run cannot begin.
#[test]
fn full_disk_prevents_run_start() {
    let place = Place::new();
    let flags = ["--clients", "1", "--calls", "1"];
    let fill = "head -c 32768 /dev/zero >full/ballast";
    if let Some(output) = run_on_small_disk(&place, fill, "grpc://127.0.0.1:1", &flags) {
        assert_eq!(output.stdout, b"");
    }
}

/// Another process fills the disk during the run: nothing more can be written, not even the totals,
/// but they are shown.
#[test]
fn disk_filling_during_run_still_shows_totals() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "1ms"]);
    let flags = ["--rate", "1000/s", "--duration", "3s", "--requests"];
    let fill = "(sleep 1; cat /dev/zero >full/ballast) 2>/dev/null & :";
    if let Some(output) = run_on_small_disk(&place, fill, &server.plaintext(), &flags) {
        let table = String::from_utf8_lossy(&output.stdout);
        // A busy machine may also be generator-limited, which is shown above it.
        assert!(table.contains("PARTIAL\n"), "{table}");
        assert!(table.contains("run.json: writing it failed"), "{table}");
        assert!(table.contains("3,000 scheduled"), "{table}");
    }
}

#[test]
fn too_few_server_descriptors_are_reported() {
    let place = Place::new();
    for arguments in [
        ["serve", "score", "--listen", "127.0.0.1:0"],
        ["relay", "gateway", "--echo", "--listen=127.0.0.1:0"],
    ] {
        let output = run_to_end(&mut command_under_limit(&place, "ulimit -n 12", &arguments));
        let printed = stderr_of(&output);
        assert_eq!(output.status.code(), Some(2), "{printed}");
        assert!(
            printed.contains("12 files may be open at once"),
            "{printed}"
        );
        assert!(printed.contains("ulimit -n"), "{printed}");
    }
}

#[test]
fn too_few_descriptors_are_reported_before_load() {
    let place = Place::new();
    let fleet = ["--fleet", "1000", "--calls", "1", "--out", "never"];
    let alone = [&fleet[..], &["--processes", "1"]].concat();
    for (limit, flags, code, words) in [
        (
            "ulimit -n 100",
            &alone[..],
            2,
            "with 1, at most 36 connections are possible (ulimit -n), but the load has 1,000",
        ),
        // Even many processes could not hold these connections.
        (
            "ulimit -n 66",
            &fleet[..],
            1,
            "1,000 connections need 500 processes",
        ),
        (
            "ulimit -n 60",
            &fleet[..],
            1,
            "a process can't open even one of 1,000 connections",
        ),
    ] {
        let arguments = score_load("grpc://127.0.0.1:1", flags);
        let output = run_to_end(&mut command_under_limit(&place, limit, &arguments));
        let printed = stderr_of(&output);
        assert_eq!(output.status.code(), Some(code), "{printed}");
        assert!(
            printed.contains(words) && printed.contains("ulimit -n"),
            "{printed}"
        );
        assert!(!place.path("never").exists());
    }
}

/// The number of connections that cold calls need is not known beforehand.
#[test]
fn exhausted_descriptors_invalidate_run() {
    let place = Place::new();
    let port = server(|stream| discard_input(&stream));
    let url = plaintext(port);
    let flags = [
        "--cold",
        "--rate",
        "200/s",
        "--calls",
        "200",
        "--connect-timeout",
        "2s",
        "--out",
        "run",
    ];
    let arguments = score_load(&url, &flags);
    let output = run_to_end(&mut command_under_limit(&place, "ulimit -n 90", &arguments));
    assert_eq!(output.status.code(), Some(1), "{}", stderr_of(&output));
    let run = place.run_json("run");
    assert_eq!(run["count_check"]["matches"], true, "{run}");
    let errors = errors(&run);
    let of = |code| errors.iter().find(|e| e.0 == code).map_or(0, |e| e.1);
    assert!(of("NO_DESCRIPTORS") > 0, "{errors:?}");
    assert_eq!(
        of("NO_DESCRIPTORS") + of("CONNECT_TIMEOUT"),
        200,
        "{errors:?}"
    );
    assert_eq!(run["state"], "invalid", "{run}");
    let report = text(&output.stdout);
    assert!(report.contains("ulimit -n"), "{report}");
    assert!(Path::new(&place.path("run/intervals.jsonl")).exists());
}
