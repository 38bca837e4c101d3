//! Clients and a backend in Python.

use super::*;

/// Returns a script of `tests/peers`.
fn python(script: &str) -> std::process::Command {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = root.join(".peers/venv/bin/python");
    assert!(
        python.exists(),
        "{} is missing: tests/setup.sh tests makes it",
        python.display()
    );
    let mut command = std::process::Command::new(python);
    command.arg(script).current_dir(root.join("tests/peers"));
    command
}

#[test]
fn late_clients_get_every_token() {
    let place = Place::new();
    let stack = Stack::up(&place, 4, "20ms");
    let mut users = python("session_client.py");
    users
        .env("FASTAPI_URL", format!("http://{}", stack.address(10)))
        .env("WSPROXY_URL", format!("ws://{}", stack.address(11)))
        .env("CLIENTS", "200")
        .env("QUERIES_PER_CLIENT", "3");
    let output = support::output(&mut users, Duration::from_secs(300));
    let said = support::text(&output.stdout);
    assert!(
        output.status.success(),
        "{said}{}",
        support::text(&output.stderr)
    );
    let tally: Value = serde_json::from_str(&said).expect("json");
    // Each text is complete, in order, and the only one.
    let text = plimsoll_relays::llm::DEFAULT_RESPONSE_TEXT;
    assert_eq!(tally["texts"], serde_json::json!({ text: 600 }), "{tally}");
    assert_eq!(
        (&tally["queries"], &tally["tokens"]),
        (&600.into(), &10_800.into()),
        "{tally}"
    );
}

/// A process that is killed when dropped.
struct KilledOnDrop(Child);

impl KilledOnDrop {
    fn start(command: &mut std::process::Command, address: &str, health: bool) -> KilledOnDrop {
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let mut process = KilledOnDrop(child);
        let address = address.parse().expect("an address");
        let begun = Instant::now();
        while !is_healthy(address, health.then_some("/health")) {
            let ended = process.0.try_wait().expect("a child");
            assert_eq!(ended, None, "{command:?} has ended");
            assert!(begun.elapsed() < Duration::from_secs(60), "{command:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        process
    }
}

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        // The process may have exited by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn fastapi_backend_works_behind_our_gateways() {
    const SECRET: &str = "a secret for tests, of 32 bytes and more";
    const TEXT: &str = "What  is sent\nonce arrives once,\u{a0}\u{1f6a2} \"quoted\" too.";
    let place = Place::new();
    let at = |n: u16| format!("127.0.0.1:{}", first_port(7) + n);
    let port = |n: u16| (first_port(7) + n).to_string();

    let mut redis = std::process::Command::new("redis-server");
    redis.args(["--port", &port(0), "--bind", "127.0.0.1", "--save", ""]);
    redis
        .args(["--appendonly", "no"])
        .current_dir(place.path(""));
    let _redis = KilledOnDrop::start(&mut redis, &at(0), false);
    let url = format!("redis://{}", at(0));
    let mut backend = python("session_backend.py");
    backend
        .env("REDIS_URL", &url)
        .env("FASTAPI_HOST", "127.0.0.1")
        .env("FASTAPI_PORT", port(1))
        .env("FASTAPI_WORKERS", "2")
        .env("TOKEN_DELAY_MS", "10")
        .env("LLM_RESPONSE_TEXT", TEXT)
        .env("JWT_SECRET", SECRET)
        .env("JWT_ALGORITHM", "HS256");
    let _backend = KilledOnDrop::start(&mut backend, &at(1), true);
    let gateways: Vec<KilledOnDrop> = [2, 3]
        .into_iter()
        .map(|n| {
            let mut gateway = place.command(&["relay", "gateway"]);
            gateway
                .env("HOST", "127.0.0.1")
                .env("PORT", port(n))
                .env("REDIS_URL", &url)
                .env("PUBSUB_POOL_SIZE", "2")
                .env("JWT_SECRET", SECRET)
                .env("JWT_ALGORITHM", "HS256");
            KilledOnDrop::start(&mut gateway, &at(n), true)
        })
        .collect();
    let balancer = BalancerConfig {
        connections: 1000,
        api: at(4),
        sockets: at(5),
        stats: at(6),
        backends: vec![at(1)],
        gateways: vec![at(2), at(3)],
        looks_up_names: false,
    };
    fs::write(place.path("haproxy.cfg"), balancer.configuration()).expect("a file");
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin";
    let mut haproxy = std::process::Command::new("haproxy");
    haproxy.env("PATH", path).args(["-db", "-f"]);
    haproxy.arg(place.path("haproxy.cfg"));
    let _haproxy = KilledOnDrop::start(&mut haproxy, &at(4), true);

    let tokens = TEXT.split_whitespace().count() as u64;
    let addresses = [(at(1), at(2)), (at(4), at(5))];
    for (name, (api, sockets)) in ["direct", "balanced"].into_iter().zip(addresses) {
        let (api, sockets) = (format!("session://{api}"), format!("ws://{sockets}"));
        let tokens_each = tokens.to_string();
        let run = [
            "session",
            &api,
            "--socket",
            &sockets,
            "--clients",
            "40",
            "--queries",
            "3",
            "--expect-tokens",
            &tokens_each,
            "--out",
            name,
            "-q",
        ];
        place.expect(0, &run);
        let run = place.run_json(name);
        assert_eq!(
            (&run["total"]["ok"], &run["total"]["due"]),
            (&120.into(), &120.into()),
            "{run}"
        );
        let counts = &run["total"]["measures"]["counts"];
        assert_eq!(counts["tokens_received"], 120 * tokens, "{counts}");
        assert_eq!(counts["sessions_ok"], 40, "{counts}");
    }
    drop(gateways);
}
