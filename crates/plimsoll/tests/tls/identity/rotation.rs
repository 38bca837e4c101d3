//! Certificates that are replaced during a load.

use super::*;

#[test]
fn certificates_rotate_at_both_ends_during_load() {
    let place = place();
    let server = place.serve(&[&["files"], &SERVER_MTLS[..]].concat());
    let url = format!("https://localhost:{}/bytes/100", server.port);
    let load = [
        "fetch", &url, "-q", "--json", "--out", "run", "--mode", "new", "--rate", "50/s",
    ];
    let more = ["--duration", "60s", "--workers", "1"];
    let trust = [&CLIENT_TLS[..], &CLIENT_IDENTITY].concat();
    let mut command = place.command(&[&load[..], &more, &trust].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    // New leaf certificates of another kind under the CA that both ends trust, made with OpenSSL.
    let wait_for = |wanted: &dyn Fn() -> bool, what: &str| {
        let end = std::time::Instant::now() + MAX_WAIT;
        while !wanted() {
            assert!(std::time::Instant::now() < end, "{what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let lines = || {
        let path = place.path("run/intervals.jsonl");
        fs::read_to_string(path).map_or(0, |text| text.lines().count())
    };
    // The first handshakes use the old certificates.
    wait_for(&|| lines() > 0, "the load never began");
    for (name, purpose) in [("server", "serverAuth"), ("client", "clientAuth")] {
        fs::write(
            place.path("ext"),
            format!("subjectAltName=DNS:localhost\nextendedKeyUsage={purpose}\n"),
        )
        .expect("a file");
        for line in [
            &[
                "req",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-subj",
                "/CN=localhost",
                "-keyout",
                "new.key",
                "-out",
                "new.csr",
            ][..],
            &[
                "x509",
                "-req",
                "-in",
                "new.csr",
                "-CA",
                "certs/ca.crt",
                "-CAkey",
                "certs/ca.key",
                "-CAcreateserial",
                "-days",
                "1",
                "-extfile",
                "ext",
                "-out",
                "new.crt",
            ],
        ] {
            run_successfully(&mut openssl(&place, line));
        }
        // The files are not replaced atomically: in between, certificate and key do not match.
        for kind in ["crt", "key"] {
            let to = place.path(&format!("certs/{name}.{kind}"));
            fs::rename(place.path(&format!("new.{kind}")), to).expect("replaced");
        }
    }
    // The load uses the new certificates once both ends have read them, each within a second of
    // handshakes, so two more whole intervals suffice.
    let now = lines();
    wait_for(&|| lines() >= now + 6, "the load stands still");
    support::signal(&child, rustix::process::Signal::INT);
    let ended = support::wait(&mut child);
    assert_eq!(ended, 130);
    let run = place.run_json("run");
    assert_eq!(run["total"]["errors"], 0, "{run}");
    assert_eq!(run["tls"]["renewed"], 1, "{run}");
    let kinds = run["tls"]["handshakes"].as_array().expect("a list");
    let has = |kind: &str| kinds.iter().any(|h| h["certificate"] == kind);
    assert!(has("ecdsa-p256") && has("rsa-2048"), "{run}");
    // The cost of the handshakes is shown next to the rest of the run.
    let rotation = &run["rotation"];
    let seconds = rotation["intervals"].as_u64().expect("a count");
    assert!((1..=2).contains(&seconds), "{rotation}");
    let (around, rest) = (&rotation["around"], &rotation["rest"]);
    for part in [around, rest] {
        assert!(part["calls"].as_u64() > Some(0), "{rotation}");
        assert_eq!(part["connections"], part["calls"], "{rotation}");
        assert_eq!(part["errors"], 0, "{rotation}");
        assert_eq!(part["connect_failures"], 0, "{rotation}");
        assert_eq!(part["handshake"]["count"], part["calls"], "{rotation}");
        for end in ["client_cpu_us_per_call", "server_cpu_us_per_call"] {
            assert!(part[end].as_f64() > Some(0.0), "{end}: {rotation}");
        }
    }
    let sum = around["calls"].as_u64().zip(rest["calls"].as_u64());
    let sum = sum.map(|(around, rest)| around + rest);
    assert_eq!(sum, run["total"]["ok"].as_u64(), "{run}");
    let shown = place.expect(0, &["report", "run"]);
    let words: Vec<&str> = shown.split_whitespace().collect();
    let shown = words.join(" ");
    assert!(shown.contains("certificates were replaced in"), "{shown}");
    assert!(shown.contains("0 failed of"), "{shown}");
    place.expect(0, &["report", "run", "--html", "run.html"]);
    assert!(
        place
            .read("run.html")
            .contains("certificates were replaced in")
    );
    let (code, said) = server.stop();
    assert_eq!(code, 0, "{said}");
    assert!(!said.contains("handshakes failed"), "{said}");
}

#[test]
fn replaced_client_ca_takes_effect_at_runtime() {
    let place = place();
    place.expect(0, &["certs", "others"]);
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        let end = std::time::Instant::now() + MAX_WAIT;
        while !is_so() {
            assert!(std::time::Instant::now() < end, "{what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let load = ["--clients", "1", "--calls", "1", "-q", "--out", "run"];
    for server in ["files", "score", "fast"] {
        let replace = |whose: &str| {
            let from = place.path(whose).join("ca.crt");
            fs::copy(from, place.path("new.crt")).expect("a copy");
            fs::rename(place.path("new.crt"), place.path("clients.crt")).expect("replaced");
        };
        replace("certs");
        let demand = ["--tls-client-ca", "clients.crt"];
        let running = place.serve(&[&[server], &SERVER_TLS[..], &demand].concat());
        let call = match server {
            "files" => vec![
                "fetch".to_owned(),
                format!("https://localhost:{}/bytes/10", running.port),
            ],
            _ => [&["grpc", &running.tls()], &SCORE[..]]
                .concat()
                .iter()
                .map(|word| (*word).to_owned())
                .collect(),
        };
        let comes_in = |whose: &str| {
            let _ = fs::remove_dir_all(place.path("run"));
            let (cert, key) = (format!("{whose}/client.crt"), format!("{whose}/client.key"));
            let shown = ["--cert", &cert, "--key", &key];
            let call: Vec<&str> = call.iter().map(String::as_str).collect();
            place
                .run(&[&call[..], &load, &CLIENT_TLS, &shown].concat())
                .status
                .success()
        };
        assert!(comes_in("certs") && !comes_in("others"), "{server}");
        replace("others");
        until("the other CA's client is never taken", &|| {
            comes_in("others")
        });
        assert!(!comes_in("certs"), "{server}");
        // Unusable files change nothing.
        fs::write(place.path("clients.crt"), "no certificate").expect("a file");
        std::thread::sleep(Duration::from_millis(1100));
        assert!(comes_in("others") && !comes_in("certs"), "{server}");
        replace("certs");
        until("the first CA's client is never taken again", &|| {
            comes_in("certs")
        });
        assert!(!comes_in("others"), "{server}");
    }
}
