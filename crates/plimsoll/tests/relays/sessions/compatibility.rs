//! Reads and writes the variables and files of existing session load tests.

use super::*;

#[test]
fn session_run_exports_rows_and_summary() {
    let place = Place::new();
    let stack = Stack::start(&place);
    let out = place.expect(
        0,
        &[
            "session",
            &format!("session://{}", stack.api),
            "--socket",
            &format!("ws://{}", stack.gateway),
            "--clients",
            "5",
            "--queries",
            "20",
            "--requests",
            "--goodput",
            "first_token=20s,query=30s",
            "--goodput",
            "time_per_token=10s",
            "--out",
            "run",
            "-q",
        ],
    );
    let bounds = "100 of 100 queries";
    assert!(out.contains(bounds), "{out}");
    assert!(
        out.contains("within first token 20s, time per token 10s, query 30s"),
        "{out}"
    );
    // The page has percentiles from p10 on, and bars.
    assert!(out.contains("p10 ") && out.contains(" p95"), "{out}");
    assert!(out.contains("█"), "{out}");

    place.expect(0, &["report", "run", "--export", "sessions", "files"]);
    let mut names: Vec<String> = fs::read_dir(place.path("files"))
        .expect("a folder")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .into_string()
                .expect("text")
        })
        .collect();
    names.sort();
    let [rows, summary] = &names[..] else {
        panic!("{names:?}");
    };
    // loadtest_YYYYMMDD_HHMMSS
    let stem = rows.strip_suffix(".csv").expect("rows");
    assert_eq!(*summary, format!("{stem}_summary.json"));
    let digits: String = stem.chars().filter(char::is_ascii_digit).collect();
    assert_eq!(digits.len(), 14, "{stem}");
    let csv = place.read(&format!("files/{rows}"));
    let mut lines = csv.split("\r\n");
    let head: Vec<&str> = lines.next().expect("a head").split(',').collect();
    let place_of = |name: &str| head.iter().position(|n| *n == name).expect(name);
    let mut seen = std::collections::BTreeSet::new();
    assert_eq!(
        head.join(","),
        "session_id,query_num,latency,tokens,create_time,connect_time,close_time,\
         reconnect_attempts,successful_reconnects,error"
    );
    for line in lines.filter(|line| !line.is_empty()) {
        let row: Vec<&str> = line.split(',').collect();
        assert_eq!(row.len(), head.len(), "{line}");
        let of = |name: &str| row[place_of(name)];
        assert_eq!((of("error"), of("tokens")), ("", "18"), "{line}");
        assert_eq!(
            (of("reconnect_attempts"), of("successful_reconnects")),
            ("0", "0")
        );
        let seconds = |name: &str| -> f64 { of(name).parse().expect(name) };
        // 18 tokens at 2 ms each.
        assert!(seconds("latency") > 0.034, "{line}");
        assert!(
            seconds("create_time") > 0.0 && seconds("connect_time") > 0.0,
            "{line}"
        );
        assert!(
            seen.insert((row[0].to_owned(), row[1].to_owned())),
            "{line}"
        );
    }
    let expected: std::collections::BTreeSet<(String, String)> = (0..5)
        .flat_map(|session| (1..=20).map(move |query| (session.to_string(), query.to_string())))
        .collect();
    assert_eq!(seen, expected);
    let summary: serde_json::Value =
        serde_json::from_str(&place.read(&format!("files/{summary}"))).expect("json");
    for (key, value) in [
        ("total_sessions", 5),
        ("successful_sessions", 5),
        ("failed_sessions", 0),
        ("total_queries", 100),
        ("successful_queries", 100),
        ("good_queries", 100),
        ("total_tokens", 1800),
        ("total_reconnect_attempts", 0),
        ("total_successful_reconnects", 0),
        ("sessions_with_reconnects", 0),
    ] {
        assert_eq!(summary[key], value, "{key}: {summary}");
    }
    assert_eq!(summary["errors"], serde_json::json!({}));
    let figure = |key: &str| summary[key].as_f64().expect(key);
    assert!(
        figure("p10_query_latency") <= figure("p90_query_latency"),
        "{summary}"
    );
    assert!(
        figure("p90_query_latency") <= figure("max_query_latency"),
        "{summary}"
    );
    assert!(
        figure("tokens_per_second") > figure("queries_per_second")
            && figure("avg_create_time") > 0.0
    );
    assert!(
        summary["p99_query_latency"].is_null(),
        "100 queries don't support p99: {summary}"
    );
    let buckets = summary["latency_histogram"].as_array().expect("a list");
    let counted: u64 = buckets.iter().filter_map(|b| b["count"].as_u64()).sum();
    assert_eq!(counted, 100, "{summary}");

    // Either of the two can be imported again.
    for (file, dir) in [
        (rows.clone(), "of_rows"),
        (format!("{stem}_summary.json"), "of_both"),
    ] {
        let file = format!("files/{file}");
        place.expect(0, &["import", &file, "--out", dir]);
        let report = place.expect(0, &["report", dir]);
        for part in ["5 ok, 0 failed", "1,800 received once", "p10 ", "█"] {
            let plain = report.replace('\u{202f}', ",");
            assert!(
                plain.contains(part) || plain.replace(',', "").contains(&part.replace(',', "")),
                "{part}: {report}"
            );
        }
        let imported = place.run_json(dir);
        assert_eq!(imported["total"]["ok"], 100, "{imported}");
    }

    // Without recorded calls there are no rows, and other kinds of runs have no sessions.
    place.expect(
        0,
        &[
            "session",
            &format!("session://{}", stack.api),
            "--socket",
            &format!("ws://{}", stack.gateway),
            "--clients",
            "1",
            "--out",
            "bare",
            "-q",
        ],
    );
    let output = place.run(&["report", "bare", "--export", "sessions", "none"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(support::stderr_of(&output).contains("no rows to write"));
    let files: Vec<_> = fs::read_dir(place.path("none"))
        .expect("a folder")
        .collect();
    assert_eq!(files.len(), 1, "the summary alone: {files:?}");
}

#[test]
fn session_env_files_configure_run() {
    let place = Place::new();
    // The variables as the env files of the simulator and of the load have them.
    let text = "one two three";
    fs::write(
        place.path(".env"),
        format!("LLM_RESPONSE_TEXT='{text}'\nTOKEN_DELAY_MS=1\nFASTAPI_WORKERS=2\n"),
    )
    .expect("a file");
    let stack = Stack::start_with_default_pace(&place, &[]);
    fs::write(
        place.path(".env.loadtest"),
        format!(
            "FASTAPI_URL=http://{}\nWSPROXY_URL=ws://{}\nCLIENTS=4\nQUERIES_PER_CLIENT=2\n\
             OUTPUT_DIR=results\nJWT_SECRET=a-secret-of-thirty-two-bytes-or-more\n\
             JWT_ALGORITHM=HS256\nWS_MAX_RECONNECT_ATTEMPTS=5\nWS_INITIAL_BACKOFF_SECONDS=1.0\n\
             WS_MAX_BACKOFF_SECONDS=30.0\n",
            stack.api, stack.gateway
        ),
    )
    .expect("a file");
    place.expect(0, &["session", "--out", "run", "-q"]);
    let run = place.run_json("run");
    assert_eq!(
        (&run["total"]["ok"], &run["total"]["due"]),
        (&8.into(), &8.into()),
        "{run}"
    );
    assert_eq!(run["total"]["measures"]["counts"]["tokens_received"], 8 * 3);
    let mut files = fs::read_dir(place.path("results")).expect("a folder");
    let mut names = Vec::new();
    while let Some(Ok(entry)) = files.next() {
        names.push(entry.file_name().into_string().expect("text"));
    }
    names.sort();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(
        names[0].starts_with("loadtest_") && names[0].ends_with(".csv"),
        "{names:?}"
    );
    let rows = place.read(&format!("results/{}", names[0]));
    assert_eq!(rows.lines().count(), 1 + 8, "{rows}");
    let plan = place.expect(0, &["session", "--dry-run"]);
    for line in [
        "reconnects = 5",
        "reconnect_pause = \"1s\"",
        "reconnect_pause_most = \"30s\"",
    ] {
        assert!(plan.contains(line), "{line}: {plan}");
    }
    // An algorithm that is not supported.
    let mut command = place.command(&["relay", "gateway", "--redis", "redis://127.0.0.1:1"]);
    command.env("JWT_ALGORITHM", "RS256");
    let output = support::output(&mut command, Duration::from_secs(60));
    assert_eq!(output.status.code(), Some(2));
    assert!(support::stderr_of(&output).contains("JWT_ALGORITHM: `RS256`"));
}
