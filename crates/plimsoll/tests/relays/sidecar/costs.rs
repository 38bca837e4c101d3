//! Costs of a sidecar: memory with many large messages, and CPU while polling.

use super::*;

/// Returns a value of a process's status in bytes.
fn status_bytes(relay: &Server, line: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", relay.child.id()));
    let status = status.expect("a process of ours");
    let found = status.lines().find(|found| found.starts_with(line));
    let number = found.and_then(|found| found.split_whitespace().nth(1)?.parse().ok());
    let kib: u64 = number.unwrap_or_else(|| panic!("no {line} in {status}"));
    kib * 1024
}

#[test]
fn large_messages_keep_sidecar_memory_bounded() {
    let place = Place::new();
    let service = place.serve(&["bolt"]);
    let text = format!(
        "[[route]]\nname = \"r\"\nprotocol = \"bolt\"\nlisten = \"127.0.0.1:0\"\n\
         upstream = [\"127.0.0.1:{}\"]\n",
        service.port
    );
    fs::write(place.path("relay.toml"), text).expect("writable");
    let relay = Server::start(&mut place.command(&["relay", "sidecar", "relay.toml"]));
    let url = format!("sofa://{}", relay.address());
    let idle = status_bytes(&relay, "VmRSS:");
    for (bytes, callers, calls) in [
        (5_000, "500", "1000"),
        (20_000, "500", "1000"),
        (64_000, "100", "200"),
        (300_000, "100", "200"),
    ] {
        let content = format!("[\"{}\"]", "x".repeat(bytes));
        fs::write(place.path("content"), content).expect("writable");
        let _ = fs::remove_dir_all(place.path("run"));
        let load = [
            "bolt", &url, "-q", "--json", "--out", "run", "--data", "@content",
        ];
        let flags = [
            "--clients",
            callers,
            "--connections",
            callers,
            "--calls",
            calls,
        ];
        let timeout = ["--deadline", "120s"];
        let run = place.expect_run(0, &[&load[..], &flags, &timeout].concat());
        assert_eq!(run["total"]["errors"], 0, "{bytes}: {run}");
        let most = status_bytes(&relay, "VmHWM:") - idle;
        assert!(
            most < 64_000_000,
            "{bytes} bytes, {callers} callers: {most} bytes over idle"
        );
    }
    assert_eq!(relay.stop().0, 0);
}

/// Returns the CPU ticks that a sidecar has used, user and system.
fn cpu_ticks(relay: &Server) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", relay.child.id()));
    let stat = stat.expect("a process of ours");
    let (_, fields) = stat.rsplit_once(')').expect("a name in parentheses");
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let number = |index: usize| fields[index].parse::<u64>().expect("a number");
    number(11) + number(12)
}

#[test]
fn sidecar_sleeps_after_busy_poll() {
    let place = Place::new();
    let service = place.serve(&["bolt"]);
    let sidecar = |busy_poll: &str| {
        let text = format!(
            "busy_poll = \"{busy_poll}\"\n[[route]]\nname = \"r\"\nprotocol = \"bolt\"\n\
             listen = \"127.0.0.1:0\"\nupstream = [\"127.0.0.1:{}\"]\n",
            service.port
        );
        fs::write(place.path("relay.toml"), text).expect("writable");
        let relay = Server::start(&mut place.command(&["relay", "sidecar", "relay.toml"]));
        let url = format!("sofa://{}", relay.address());
        let load = ["bolt", &url, "-q", "--clients", "4", "--calls", "100"];
        place.expect(0, &[&load[..], &["--out", busy_poll]].concat());
        relay
    };
    let (briefly, always) = (sidecar("1ms"), sidecar("1h"));
    let before = (cpu_ticks(&briefly), cpu_ticks(&always));
    let end = Instant::now() + MAX_WAIT;
    while cpu_ticks(&always) < before.1 + 50 {
        assert!(Instant::now() < end, "it does not poll");
        std::thread::sleep(Duration::from_millis(20));
    }
    let slept = cpu_ticks(&briefly) - before.0;
    assert!(slept < 25, "{slept} ticks with nothing to do");
    assert_eq!((briefly.stop().0, always.stop().0), (0, 0));
}
