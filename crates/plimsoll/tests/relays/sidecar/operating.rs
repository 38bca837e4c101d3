//! Operating a sidecar: metrics, logs, and a new configuration.

use super::*;

/// Uses the parser of Prometheus's own client library.
#[test]
fn prometheus_parser_reads_metrics() {
    let place = Place::new();
    let service = place.serve(&["score"]);
    let text = format!(
        "admin = \"127.0.0.1:0\"\n[[route]]\nname = \"a\\\"b\\\\c\"\nprotocol = \"grpc\"\n\
         listen = \"127.0.0.1:0\"\nupstream = [\"127.0.0.1:{}\"]\n",
        service.port
    );
    fs::write(place.path("relay.toml"), text).expect("writable");
    let mut relay = Server::start(&mut place.command(&["relay", "sidecar", "relay.toml"]));
    let admin = relay.next_address();
    let url = relay.plaintext();
    let load = ["grpc", &url, "-q", "--clients", "4", "--calls", "100"];
    let out = ["--out", "run"];
    place.expect(0, &[&load[..], &SCORE, &out].concat());
    fs::write(place.path("page"), fetch_metrics(&admin)).expect("writable");
    let read = output_text(python(&place, "openmetrics.py").arg("page"));
    for line in [
        "plimsoll_sidecar_call_duration_seconds histogram: From a request's arrival".to_owned(),
        format!(
            "plimsoll_sidecar_upstream_calls_total{{route='a\"b\\\\c',upstream='127.0.0.1:{}'}} 100",
            service.port
        ),
        "plimsoll_sidecar_upstream_answers_total{route='a\"b\\\\c',status='OK'} 100".to_owned(),
        "plimsoll_sidecar_call_duration_seconds_count{route='a\"b\\\\c'} 100".to_owned(),
        "plimsoll_sidecar_calls_in_flight{route='a\"b\\\\c'} 0".to_owned(),
    ] {
        assert!(read.contains(&line), "{line}: {read}");
    }
    assert_eq!(relay.stop().0, 0);
}

/// Waits until the log contains `words` `times` times.
#[track_caller]
fn wait_for_log(place: &Place, words: &str, times: usize) {
    let printed = || place.read("relay.log").matches(words).count();
    for _ in 0..600 {
        if printed() >= times {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(printed(), times, "{words}: {}", place.read("relay.log"));
}

#[test]
fn outages_and_malformed_peers_are_logged() {
    let place = Place::new();
    let service = place.serve(&["bolt"]);
    let at = format!("127.0.0.1:{}", service.port);
    let text = format!(
        "workers = 2\n[[route]]\nname = \"r\"\nprotocol = \"bolt\"\nlisten = \"127.0.0.1:0\"\n\
         upstream = [\"{at}\"]\n"
    );
    fs::write(place.path("relay.toml"), text).expect("writable");
    let log = fs::File::create(place.path("relay.log")).expect("a log");
    let relay = Server::start(
        place
            .command(&["relay", "sidecar", "relay.toml"])
            .stderr(log),
    );
    let address = relay.address();
    let fails = || {
        let _ = fs::remove_dir_all(place.path("run"));
        let url = format!("sofa://{address}");
        let load = [
            "bolt",
            &url,
            "-q",
            "--connections",
            "8",
            "--clients",
            "8",
            "--calls",
            "40",
            "--out",
            "run",
        ];
        let mut run = place.command(&load);
        support::output(&mut run, Duration::from_secs(60));
        place.run_json("run")["total"]["errors"] != 0
    };
    assert!(!fails());
    assert_eq!(service.stop().0, 0);
    assert!((0..3).all(|_| fails()));
    let down = format!("route r: upstream {at} is down: Connection refused");
    wait_for_log(&place, &down, 1);
    let again = place.command(&["serve", "bolt", "--listen", &at]).spawn();
    let mut again = again.expect("plimsoll runs");
    // The upstream may be ejected for a second.
    assert!((0..60).any(|_| !fails()), "{}", place.read("relay.log"));
    assert!((0..3).all(|_| !fails()));
    wait_for_log(&place, &format!("route r: upstream {at} is back"), 1);
    wait_for_log(&place, &down, 1);
    again.kill().expect("ours");
    again.wait().expect("ours");
    // Bytes of peers are not logged without --verbose.
    let mut bad = TcpStream::connect(&address).expect("a sidecar");
    bad.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
    let mut said = Vec::new();
    let _ = bad.read_to_end(&mut said);
    let peer = bad.local_addr().expect("connected");
    wait_for_log(
        &place,
        &format!("route r: malformed data from client {peer}: "),
        1,
    );
    assert_eq!(relay.stop().0, 0);
}

#[test]
fn sighup_reloads_sidecar_config() {
    let place = Place::new();
    let service = place.serve(&["bolt"]);
    let route = |name: &str| {
        format!(
            "[[route]]\nname = \"{name}\"\nprotocol = \"bolt\"\nlisten = \"127.0.0.1:0\"\n\
             upstream = [\"127.0.0.1:{}\"]\n",
            service.port
        )
    };
    fs::write(place.path("relay.toml"), route("a")).expect("writable");
    let log = fs::File::create(place.path("relay.log")).expect("a log");
    let mut relay = Server::start(
        place
            .command(&["relay", "sidecar", "relay.toml"])
            .stderr(log),
    );
    let hangup = |relay: &Server| support::signal(&relay.child, rustix::process::Signal::HUP);
    fs::write(place.path("relay.toml"), "[[route]]\nname = 7\n").expect("writable");
    hangup(&relay);
    wait_for_log(&place, "not reloaded, nothing changed: relay.toml: ", 1);
    fs::write(place.path("relay.toml"), route("a") + &route("b")).expect("writable");
    hangup(&relay);
    wait_for_log(&place, "relay.toml: reloaded", 1);
    // The current routes: the first keeps its address.
    let first = relay.address();
    assert_eq!(relay.next_address(), first);
    let url = format!("sofa://{}", relay.next_address());
    let load = ["bolt", &url, "-q", "--clients", "4", "--calls", "40"];
    place.expect(0, &[&load[..], &["--out", "run"]].concat());
    assert_eq!(relay.stop().0, 0);
}
