//! Servers of several processes that share a port.

use super::*;

#[test]
fn multiprocess_server_acts_as_one() {
    let place = Place::new();
    let server = place.serve(&["orders", "--pool", "4", "--processes", "3"]);
    let parts = children(server.child.id());
    assert_eq!(parts.len(), 3);
    let url = server.plaintext();
    let mut arguments = vec![
        "grpc",
        &url,
        "--fleet",
        "60",
        "--duration",
        "1500ms",
        "--think",
        "20ms",
    ];
    arguments.extend(["--out", "run", "--json", "-q"]);
    arguments.extend(ORDER);
    let run = place.expect_run(0, &arguments);
    let calls = count(&run["total"]["ok"]);
    assert_all_ok(&run, calls);
    // The final counts cover all processes that listen on the port.
    let descriptors = |pid: &i32| fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as u64;
    let own: u64 = parts.iter().map(descriptors).sum();
    let seen = count(&run["total"]["server"]["descriptors_max"]);
    assert!(seen >= own + 60, "{seen} of {own} and 60 connections");
    let (code, counts) = server.stop();
    assert_eq!(code, 0);
    for part in [
        format!("processed {calls}").as_str(),
        "connections 60",
        "connections at once in a process",
    ] {
        assert!(counts.contains(part), "{counts}");
    }
    assert!(
        parts.iter().all(|pid| !is_running(*pid)),
        "a process outlived its server"
    );
}

#[test]
fn dead_server_process_ends_server() {
    let place = Place::new();
    let mut command = place.command(&[
        "serve",
        "score",
        "--listen",
        "127.0.0.1:0",
        "--processes",
        "2",
    ]);
    command.stderr(Stdio::piped());
    let mut server = support::Server::start(&mut command);
    let parts = children(server.child.id());
    kill_process(Pid::from_raw(parts[1]).unwrap(), Signal::KILL).unwrap();
    assert_eq!(wait(&mut server.child), 1);
    let mut said = String::new();
    let mut stderr = server.child.stderr.take().unwrap();
    std::io::Read::read_to_string(&mut stderr, &mut said).unwrap();
    assert!(said.contains("process 2 of 2 exited"), "{said}");
    assert!(!is_running(parts[0]));
}

#[test]
fn server_processes_exit_with_parent() {
    let place = Place::new();
    let mut server = place.serve(&["score", "--processes", "2"]);
    let parts = children(server.child.id());
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while parts.iter().any(|pid| is_running(*pid)) {
        assert!(Instant::now() < end, "a process outlived its server");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn multiprocess_listen_failure_is_reported_once() {
    let place = Place::new();
    let output = place.run(&[
        "serve",
        "score",
        "--listen",
        "127.0.0.1:0",
        "--processes",
        "3",
        "--tls-cert",
        "missing.crt",
        "--tls-key",
        "missing.key",
    ]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        stderr_of(&output).matches("missing.crt").count(),
        1,
        "{}",
        stderr_of(&output)
    );
    let other = place.serve(&["score"]);
    let output = place.run(&[
        "serve",
        "score",
        "--listen",
        &other.address(),
        "--processes",
        "2",
    ]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr_of(&output).contains("already in use"),
        "{}",
        stderr_of(&output)
    );
}
