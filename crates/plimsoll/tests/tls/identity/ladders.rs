//! Ladders over the TLS settings of connections.

use super::*;

#[test]
fn ladder_generates_and_serves_each_certificate_kind() {
    let place = Place::new();
    let plan = "[call.grpc]\nmethod = \"score.ScoreService/GetScore\"\nmessage = { json = \"[1]\" }\n\
        [load]\nrate = \"50/s\"\nreuse = \"never\"\n\
        [ladder]\nslice = \"300ms\"\nrounds = 1\nserve = [\"score\", \"--delay\", \"0s\"]\ntls = [\"mutual\"]\n\
        certificate = [\"ed25519\", \"ml-dsa-44\"]\ngroup = [\"X25519MLKEM768\", \"secp256r1\"]\n";
    fs::write(place.path("plan.toml"), plan).expect("a file");
    let climb = ["ladder", "plan.toml", "--out", "ladder", "--json"];
    let document = place.expect_json(0, &climb)["ladder"].take();
    let rungs = document["rungs"].as_array().expect("rungs");
    assert_eq!(rungs.len(), 4, "{document}");
    for kind in ["ed25519", "ml-dsa-44"] {
        assert!(
            place
                .path(&format!("ladder/certs/{kind}/server.crt"))
                .exists()
        );
    }
    for (from, to, why) in [
        ("ed25519", "ed448", "is unknown"),
        ("[\"mutual\"]", "[\"off\"]", "uses no certificate"),
        (
            "serve = [\"score\", \"--delay\", \"0s\"]",
            "",
            "made for a server that the ladder starts",
        ),
    ] {
        fs::write(place.path("wrong.toml"), plan.replace(from, to)).expect("a file");
        let target = ["--target", "grpcs://localhost:1"];
        let wrong = ["ladder", "wrong.toml", "--out", "wrong"];
        let flags = if to.is_empty() { &target[..] } else { &[] };
        let out = place.run(&[&wrong[..], flags].concat());
        assert!(!out.status.success(), "{why}");
        let said = stderr_of(&out)
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        assert!(said.contains(why), "{why}: {said}");
    }
}

#[test]
fn ladder_lists_new_and_resumed_connection_costs() {
    let place = Place::new();
    let plan = "[call.grpc]\nmethod = \"score.ScoreService/GetScore\"\nmessage = { json = \"[1]\" }\n\
        [load]\nrate = \"400/s\"\nduration = \"1s\"\n\
        [ladder]\nserve = [\"score\", \"--delay\", \"0s\"]\nparts = [\"connections\", \"resumed\"]\n\
        tls = [\"server\", \"mutual\"]\ncertificate = [\"ecdsa-p256\"]\n";
    fs::write(place.path("plan.toml"), plan).expect("a file");
    let climb = ["ladder", "plan.toml", "--out", "ladder", "--json"];
    let document = place.expect_json(0, &climb)["ladder"].take();
    for rung in document["rungs"].as_array().expect("rungs") {
        // The p99 covers the connections of all rounds together.
        for part in ["connections", "resumed"] {
            let slices = rung["parts"][part].as_array().expect("slices");
            // A slice that a busy machine kept from ending has no counts of the kernel.
            let made: u64 = slices
                .iter()
                .filter_map(|slice| slice["carried"]["connections"].as_u64())
                .sum();
            let p99 = &rung["connection_p99"][part];
            let Some(of) = p99["count"].as_u64() else {
                // A p99 needs 368 of them, without the warm-up and the ends of rounds.
                assert!(made < 1_000, "{part}: {made} connections: {rung}");
                continue;
            };
            assert!(of >= 368 && of <= made, "{part}: {of} of {made}: {rung}");
            let at = |key: &str| p99[key].as_f64().expect("a time");
            assert!(
                at("low_us") <= at("us") && at("us") <= at("high_us"),
                "{p99}"
            );
        }
    }
    let shown = place.expect(0, &["report", "ladder", "--markdown", "-"]);
    let prices: Vec<&str> = shown
        .lines()
        .skip_while(|line| !line.starts_with("| a new connection with a call"))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .collect();
    let names = [
        "tls server, full",
        "tls server, resumed",
        "tls mutual, full",
        "tls mutual, resumed",
    ];
    assert_eq!(prices.len(), names.len(), "{shown}");
    for (row, name) in prices.iter().zip(names) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert!(cells[0].ends_with(name), "{row}");
        let known = |i: usize| i == 2 || cells[i] != "–";
        assert!((1..cells.len()).all(known), "{row}");
    }
}

#[test]
fn ladder_compares_openssl_and_rustls_servers() {
    let place = Place::new();
    let version = text(&run_successfully(&mut openssl(&place, &["version"])).stdout);
    let version: Vec<&str> = version.split_whitespace().take(2).collect();
    let version = version.join(" ");
    let mine = [("ecdsa-p256", ""), ("rsa-2048", ""), ("ml-dsa-65", "")];
    let kinds = known_to_openssl(&place, &mine);
    let groups = known_to_openssl(&place, &[("X25519", ""), ("X25519MLKEM768", "")]);
    let list = |known: &[(&str, &str)]| {
        let quoted = known.iter().map(|(name, _)| format!("\"{name}\""));
        quoted.collect::<Vec<_>>().join(", ")
    };
    let plan = format!(
        "[call.fetch]\n[load]\nrate = \"20/s\"\nreuse = \"never\"\nwarmup = \"300ms\"\n\
        [ladder]\nslice = \"500ms\"\nrounds = 1\nserve = [\"files\"]\nsize = [\"1KiB\"]\n\
        tls = [\"mutual\"]\nconnection = [\"new\", \"resumed\"]\nlibrary = [\"rustls\", \"openssl\"]\n\
        certificate = [{}]\ngroup = [{}]\n",
        list(&kinds),
        list(&groups)
    );
    fs::write(place.path("plan.toml"), plan).expect("a file");
    let mut command = place.command(&["ladder", "plan.toml", "--out", "ladder", "--json"]);
    let path = std::env::var_os("PATH").expect("a path");
    let out = output(command.env("PATH", &path), MAX_WAIT);
    assert_eq!(out.status.code(), Some(0), "{}", stderr_of(&out));
    let mut document: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let document = document["ladder"].take();
    let rungs = document["rungs"].as_array().expect("rungs");
    assert_eq!(rungs.len(), kinds.len() * groups.len() * 4, "{document}");
    let ours = document["client_tls"].as_str().expect("a library");
    assert!(
        ours.contains("rustls ") && ours.contains("aws-lc"),
        "{ours}"
    );
    let primitives = &document["primitives"];
    for rung in rungs {
        let settings = &rung["settings"];
        // The cost of the cryptography is known for each group and kind, and is part of the total.
        let handshake = &rung["handshake"];
        let of = |what: &str, key: &Value| {
            let us = primitives[what][key.as_str().expect("a name")].as_f64();
            us.unwrap_or_else(|| panic!("{what} {key}: {primitives}"))
        };
        assert_eq!(handshake["mutual"], true, "{rung}");
        assert_eq!(
            handshake["resumed"] == true,
            settings["connection"] == "resumed"
        );
        for (what, key) in [
            ("client_exchange_us", &handshake["group"]),
            ("server_exchange_us", &handshake["group"]),
            ("sign_us", &handshake["certificate"]),
            ("verify_us", &handshake["certificate"]),
        ] {
            assert!(of(what, key) > 0.0, "{what} {key}: {primitives}");
        }
        let library = match settings["library"].as_str() {
            Some("openssl") => version.as_str(),
            _ => ours,
        };
        assert_eq!(rung["server_tls"], library, "{rung}");
        let slice = &rung["slices"][0];
        assert_eq!(slice["errors"], 0, "{rung}");
        assert!(
            slice["server_cpu_us_per_call"].as_f64() > Some(0.0),
            "{rung}"
        );
        // The run used the rung's settings for the server's certificate and the key exchange.
        let run = place.run_json(&format!("ladder/{}", slice["run"].as_str().expect("a run")));
        assert_eq!(run["security"], "mutual-tls", "{run}");
        assert_eq!(run["tls"]["group"], settings["group"], "{run}");
        let kinds = run["tls"]["handshakes"].as_array().expect("a list");
        let full = kinds
            .iter()
            .find(|h| h["resumed"] != true)
            .expect("a full one");
        assert_eq!(full["certificate"], settings["certificate"], "{run}");
        let resumed = kinds.iter().any(|h| h["resumed"] == true);
        assert_eq!(resumed, settings["connection"] == "resumed", "{run}");
    }
    let shown = place.expect(0, &["report", "ladder"]);
    let words: Vec<&str> = shown.split_whitespace().collect();
    let shown = words.join(" ");
    assert!(
        shown.contains(&format!("TLS at the client is {ours}, at the server")),
        "{shown}"
    );
    assert!(shown.contains(&version), "{shown}");
    assert!(shown.contains("a new connection with a call"), "{shown}");
    place.expect(0, &["report", "ladder", "--html", "ladder.html"]);
    assert!(place.read("ladder.html").contains(&version));
}

#[test]
fn ladder_reports_unsupported_openssl_settings() {
    let place = Place::new();
    let plan = "[call.fetch]\n[load]\nrate = \"20/s\"\nreuse = \"never\"\n\
        [ladder]\nslice = \"300ms\"\nrounds = 1\nserve = [\"files\"]\nsize = [\"1KiB\", \"2KiB\"]\n\
        tls = [\"server\"]\nlibrary = [\"openssl\"]\n";
    for (from, to, why) in [
        ("\"server\"", "\"off\"", "is plaintext"),
        (
            "[\"files\"]",
            "[\"score\"]",
            "replaces Plimsoll's own file server",
        ),
        ("\"never\"", "\"always\"", "closes each connection"),
        ("openssl", "gnutls", "use \"rustls\" or \"openssl\""),
        // There is no openssl on this PATH.
        ("", "", "can't run `openssl`"),
    ] {
        fs::write(place.path("wrong.toml"), plan.replace(from, to)).expect("a file");
        let _ = fs::remove_dir_all(place.path("wrong"));
        let mut command = place.command(&["ladder", "wrong.toml", "--out", "wrong"]);
        let out = output(command.env("PATH", place.path("")), MAX_WAIT);
        assert!(!out.status.success(), "{why}");
        assert!(stderr_of(&out).contains(why), "{why}: {}", stderr_of(&out));
    }
}
