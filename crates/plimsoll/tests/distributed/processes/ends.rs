//! How a load of several processes ends.

use super::*;

#[test]
fn interrupt_reaches_all_processes_and_saves_results() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "1ms"]);
    let mut command = place.command(&["grpc", &server.plaintext(), "--rate", "200/s"]);
    command.args([
        "--duration",
        "60s",
        "--connections",
        "3",
        "--processes",
        "3",
        "--out",
        "run",
        "-q",
    ]);
    command
        .args(SCORE)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let parts = wait_until_started(&place, child.id(), 3);
    signal(&child, Signal::INT);
    assert_eq!(wait(&mut child), 130);
    let run = place.run_json("run");
    assert_eq!(
        (&run["state"], &run["reason"]),
        (&"aborted".into(), &"interrupted by a signal".into())
    );
    assert_eq!(
        run["count_check"]["matches"], true,
        "{}",
        run["count_check"]
    );
    assert!(count(&run["total"]["ok"]) > 100);
    assert!(
        parts.iter().all(|pid| !is_running(*pid)),
        "a process outlived its run"
    );
}

#[test]
fn dead_process_ends_run_and_keeps_measurements() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "1ms"]);
    let mut command = place.command(&["grpc", &server.plaintext(), "--rate", "300/s"]);
    command.args([
        "--duration",
        "60s",
        "--connections",
        "3",
        "--processes",
        "3",
        "--out",
        "run",
        "-q",
    ]);
    command.args(["--objective", "p99 < 10s"]);
    command
        .args(SCORE)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let parts = wait_until_started(&place, child.id(), 3);
    kill_process(Pid::from_raw(parts[1]).unwrap(), Signal::KILL).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(90), "{}", text(&output.stderr));
    let run = place.run_json("run");
    assert_eq!(run["state"], "partial");
    let reason = run["reason"].as_str().unwrap();
    assert!(
        reason.contains("process 2 of 3: ended by signal 9"),
        "{reason}"
    );
    assert_eq!(
        run["count_check"]["matches"], true,
        "{}",
        run["count_check"]
    );
    assert!(count(&run["total"]["ok"]) > 100);
    assert!(
        text(&output.stdout).contains("PARTIAL"),
        "{}",
        text(&output.stdout)
    );
    assert!(
        stderr_of(&output).contains("stopping the others"),
        "{}",
        stderr_of(&output)
    );
    assert!(
        parts.iter().all(|pid| !is_running(*pid)),
        "a process outlived its run"
    );
}

/// A process that was stopped, swapped out or starved of CPU is only noticed by its silence.
#[test]
fn stalled_process_is_dropped_and_others_continue() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "1ms"]);
    let mut command = place.command(&["grpc", &server.plaintext(), "--rate", "300/s"]);
    command.args([
        "--duration",
        "20s",
        "--connections",
        "3",
        "--processes",
        "3",
    ]);
    command.args(["--out", "run", "-q"]);
    command.args(SCORE);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let parts = wait_until_started(&place, child.id(), 3);
    kill_process(Pid::from_raw(parts[1]).unwrap(), Signal::STOP).unwrap();
    // The measurements of the others are written continuously, long before the end.
    let written = intervals(&place);
    let end = Instant::now() + Duration::from_secs(60);
    while intervals(&place) < written + 4 {
        assert!(Instant::now() < end, "nothing is written any more");
        thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().unwrap();
    let printed = stderr_of(&output);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    for words in ["process 2 of 3: is stalled", "the run goes on without it"] {
        assert!(printed.contains(words), "{words:?} in {printed}");
    }
    let run = place.run_json("run");
    assert_eq!(run["state"], "partial");
    let reason = run["reason"].as_str().unwrap();
    assert!(reason.contains("process 2 of 3: is stalled"), "{reason}");
    let check = &run["count_check"];
    assert_eq!(check["matches"], true, "{check}");
    // Two of three processes continued: 300/s for 20 s, without most of the third one's share.
    let ok = count(&run["total"]["ok"]);
    assert!((3_900..5_500).contains(&ok), "{}", run["total"]);
    assert!(parts.iter().all(|pid| !is_running(*pid)));
}

/// Two stop requests mean "at once", also for a process that cannot receive them.
#[test]
fn stalled_process_does_not_block_shutdown() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "1ms"]);
    let mut command = place.command(&["grpc", &server.plaintext(), "--rate", "300/s"]);
    command.args([
        "--duration",
        "600s",
        "--connections",
        "3",
        "--processes",
        "3",
    ]);
    command.args(["--out", "run", "-q"]);
    command.args(SCORE);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let parts = wait_until_started(&place, child.id(), 3);
    kill_process(Pid::from_raw(parts[2]).unwrap(), Signal::STOP).unwrap();
    // Two signals of one kind may be merged.
    signal(&child, Signal::INT);
    signal(&child, Signal::TERM);
    assert_eq!(wait(&mut child), 130);
    let run = place.run_json("run");
    let check = &run["count_check"];
    assert_eq!(check["matches"], true, "{check}");
    assert!(count(&run["total"]["ok"]) > 100);
    assert!(parts.iter().all(|pid| !is_running(*pid)));
}

fn intervals(place: &Place) -> usize {
    fs::read_to_string(place.path("run/intervals.jsonl")).map_or(0, |text| text.lines().count())
}

#[test]
fn child_processes_exit_with_parent() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "1ms"]);
    let mut command = place.command(&["grpc", &server.plaintext(), "--rate", "100/s"]);
    command.args([
        "--duration",
        "60s",
        "--connections",
        "2",
        "--processes",
        "2",
        "--out",
        "run",
        "-q",
    ]);
    command
        .args(SCORE)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let parts = wait_until_started(&place, child.id(), 2);
    child.kill().unwrap();
    child.wait().unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while parts.iter().any(|pid| is_running(*pid)) {
        assert!(Instant::now() < end, "a process outlived its run");
        thread::sleep(Duration::from_millis(20));
    }
    // The data that the killed run had written can be read.
    let report = place.expect(0, &["report", "run"]);
    assert!(report.contains("PARTIAL"), "{report}");
}
