use super::*;

fn environment(process: &[(&str, &str)], file: &[(&str, &str)]) -> Environment {
    let map = |pairs: &[(&str, &str)]| {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    };
    Environment {
        process: map(process),
        file: map(file),
        ..Environment::default()
    }
}

#[test]
fn precedence_is_process_then_alias_then_file() {
    let value = |e: &Environment| {
        e.fallback_value("PLIMSOLL_RATE", "grpc")
            .map(|f| (f.value, f.variable))
    };
    let alias = Some(("700/s".to_owned(), "N_RPS".to_owned()));
    assert_eq!(
        value(&environment(
            &[("N_RPS", "700")],
            &[("PLIMSOLL_RATE", "5/s")]
        )),
        alias
    );
    assert_eq!(
        value(&environment(
            &[("N_RPS", "700"), ("PLIMSOLL_RATE", "5/s")],
            &[]
        )),
        None
    );
    assert_eq!(
        value(&environment(
            &[],
            &[("N_RPS", "700"), ("PLIMSOLL_RATE", "5/s")]
        )),
        Some(("5/s".into(), "PLIMSOLL_RATE".into()))
    );
    assert_eq!(value(&environment(&[], &[("N_RPS", "700")])), alias);
    assert_eq!(value(&environment(&[("N_RPS", "")], &[])), None);
}

#[test]
fn env_file_runs_and_places_nothing() {
    let mut environment = Environment::default();
    let text = "PLIMSOLL_HEADER_FROM_COMMAND=\"a: touch x\"\nPLIMSOLL_CODEC=x.so\nPLIMSOLL_RATE=5/s\n\
                SSLKEYLOGFILE=keys\nT_DURATION_SEC='5\nN_RPS=7\nPLIMSOLL_OUT=x\nOUTPUT_DIR=/x\n";
    environment.add_env_file(".env", text);
    for (variable, command) in [
        ("PLIMSOLL_HEADER_FROM_COMMAND", "http"),
        ("PLIMSOLL_CODEC", "plugin"),
        ("PLIMSOLL_KEY_LOG", "http"),
        ("PLIMSOLL_DURATION", "http"),
        ("PLIMSOLL_OUT", "http"),
        ("PLIMSOLL_OUTPUT_DIR", "session"),
    ] {
        assert_eq!(
            environment.fallback_value(variable, command),
            None,
            "{variable}"
        );
        let failure = environment.rejected_value_failure(variable, command);
        let text = failure.expect("a failure").to_string();
        assert!(text.starts_with(".env"), "{text}");
        assert!(!text.contains("touch") && !text.contains("'5"), "{text}");
    }
    let rate = environment.fallback_value("PLIMSOLL_RATE", "http");
    assert_eq!(rate.map(|found| found.value).as_deref(), Some("5/s"));
    assert!(
        environment
            .rejected_value_failure("PLIMSOLL_RATE", "http")
            .is_none()
    );
    assert_eq!(environment.rejection_messages().count(), 6);
    // The process's own environment may set it.
    environment
        .process
        .insert("SSLKEYLOGFILE".into(), "own".into());
    assert!(
        environment
            .rejected_value_failure("PLIMSOLL_KEY_LOG", "http")
            .is_none()
    );
    // A file with precedence replaces a malformed line.
    environment.add_env_file(".env", "T_DURATION_SEC=5");
    assert!(
        environment
            .rejected_value_failure("PLIMSOLL_DURATION", "http")
            .is_none()
    );
}

#[test]
fn aliases_accept_bare_numbers_and_units() {
    let e = environment(
        &[
            ("T_DURATION_SEC", "30"),
            ("T_WARMUP_SEC", "500ms"),
            ("DELAY_MS", "2.5"),
            ("TLS_CA", "ca1"),
        ],
        &[],
    );
    let value = |variable| e.fallback_value(variable, "grpc").map(|f| f.value);
    assert_eq!(value("PLIMSOLL_DURATION").as_deref(), Some("30s"));
    assert_eq!(value("PLIMSOLL_WARMUP").as_deref(), Some("500ms"));
    assert_eq!(value("PLIMSOLL_DELAY").as_deref(), Some("2.5ms"));
    assert_eq!(value("PLIMSOLL_CA").as_deref(), Some("ca1"));
    assert_eq!(value("PLIMSOLL_TLS_CLIENT_CA").as_deref(), Some("ca1"));
}

#[test]
fn host_and_port_with_ca_become_tls_target() {
    let target = |pairs: &[(&str, &str)]| {
        environment(pairs, &[])
            .fallback_value("PLIMSOLL_TARGET", "grpc")
            .map(|f| f.value)
    };
    assert_eq!(
        target(&[("DF_HOST", "a"), ("DF_PORT", "1")]).as_deref(),
        Some("grpc://a:1")
    );
    assert_eq!(
        target(&[("DF_HOST", "::1"), ("DF_PORT", "1"), ("TLS_CA", "ca")]).as_deref(),
        Some("grpcs://[::1]:1")
    );
    assert_eq!(target(&[]), None);
    let listen = environment(&[("DF_PORT", "7")], &[]).fallback_value("PLIMSOLL_LISTEN", "score");
    assert_eq!(listen.map(|f| f.value).as_deref(), Some("localhost:7"));
}

#[test]
fn http_urls_become_session_targets() {
    let value = |name: &str, url: &str, variable: &str, command: &str| {
        environment(&[(name, url)], &[])
            .fallback_value(variable, command)
            .map(|found| found.value)
    };
    for (url, target) in [
        ("http://localhost:8080", "session://localhost:8080"),
        ("http://localhost:8080/", "session://localhost:8080"),
        ("http://api", "session://api:80"),
        ("https://api", "sessions://api:443"),
        ("http://[::1]", "session://[::1]:80"),
        ("session://api:1", "session://api:1"),
        ("api:8080", "session://api:8080"),
        ("ftp://api", "ftp://api"),
    ] {
        let found = value("FASTAPI_URL", url, "PLIMSOLL_TARGET", "session");
        assert_eq!(found.as_deref(), Some(target), "{url}");
        assert_eq!(value("FASTAPI_URL", url, "PLIMSOLL_TARGET", "grpc"), None);
    }
    for (url, sockets) in [
        ("ws://localhost:8081", "ws://localhost:8081"),
        ("wss://sockets", "wss://sockets:443"),
        ("http://localhost:8081", "ws://localhost:8081"),
    ] {
        let found = value("WSPROXY_URL", url, "PLIMSOLL_SOCKET", "session");
        assert_eq!(found.as_deref(), Some(sockets), "{url}");
    }
}

#[test]
fn generic_variables_apply_only_to_sessions() {
    for (name, typed, variable, meant) in [
        ("CLIENTS", "5", "PLIMSOLL_CLIENTS", "5"),
        ("QUERIES_PER_CLIENT", "3", "PLIMSOLL_QUERIES", "3"),
        ("OUTPUT_DIR", "out", "PLIMSOLL_OUTPUT_DIR", "out"),
        ("WS_MAX_RECONNECT_ATTEMPTS", "7", "PLIMSOLL_RECONNECTS", "7"),
        (
            "WS_INITIAL_BACKOFF_SECONDS",
            "0.5",
            "PLIMSOLL_RECONNECT_PAUSE",
            "0.5s",
        ),
        (
            "WS_MAX_BACKOFF_SECONDS",
            "30",
            "PLIMSOLL_RECONNECT_PAUSE_MOST",
            "30s",
        ),
    ] {
        let value = |command| {
            let found = environment(&[], &[(name, typed)]).fallback_value(variable, command);
            found.map(|found| found.value)
        };
        for command in ["session", "stack run"] {
            assert_eq!(
                value(command).as_deref(),
                Some(meant),
                "{name} of {command}"
            );
        }
        for command in ["grpc", "run", "stack up", "bolt"] {
            assert_eq!(value(command), None, "{name} of {command}");
        }
    }
    let simulator = [
        ("FASTAPI_HOST", "0.0.0.0"),
        ("FASTAPI_PORT", "9000"),
        ("FASTAPI_WORKERS", "4"),
    ];
    let value = |variable, command| {
        let found = environment(&simulator, &[]).fallback_value(variable, command);
        found.map(|found| found.value)
    };
    assert_eq!(
        value("PLIMSOLL_LISTEN", "serve llm").as_deref(),
        Some("0.0.0.0:9000")
    );
    assert_eq!(value("PLIMSOLL_WORKERS", "serve llm").as_deref(), Some("4"));
    assert_eq!(value("PLIMSOLL_WORKERS", "relay gateway"), None);
    assert_eq!(value("PLIMSOLL_LISTEN", "serve score"), None);
}

#[test]
fn bare_host_and_port_apply_only_to_gateway() {
    let listen = |pairs: &[(&str, &str)], command| {
        let found = environment(pairs, &[]).fallback_value("PLIMSOLL_LISTEN", command);
        found.map(|f| f.value)
    };
    let both = [("HOST", "0.0.0.0"), ("PORT", "5000")];
    assert_eq!(
        listen(&both, "relay gateway").as_deref(),
        Some("0.0.0.0:5000")
    );
    assert_eq!(
        listen(&both[..1], "relay gateway").as_deref(),
        Some("0.0.0.0:4040")
    );
    assert_eq!(
        listen(&both[1..], "relay gateway").as_deref(),
        Some("127.0.0.1:5000")
    );
    for command in ["serve llm", "serve score", "relay sidecar"] {
        assert_eq!(listen(&both, command), None);
    }
    let target = environment(&both, &[]).fallback_value("PLIMSOLL_TARGET", "grpc");
    assert_eq!(target, None);
}
