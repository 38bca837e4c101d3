use std::path::PathBuf;

use super::*;

fn request() -> RecordingOptions {
    RecordingOptions {
        file: PathBuf::from("access.log"),
        format: None,
        time_column: None,
        speed: 1.0,
        window: None,
        filters: Vec::new(),
        sample: None,
        seed: 1,
        own_host: None,
    }
}

fn read(request: &RecordingOptions, text: &str) -> Result<Recording, String> {
    Recording::read(request, Box::new(text.as_bytes()))
}

fn times(recording: &Recording) -> Vec<u64> {
    let mut cursor = recording.cursor();
    (0..).map_while(|n| cursor.arrival_time_ns(n)).collect()
}

fn column(recording: &Recording, name: &str) -> Vec<String> {
    let rows = recording.rows().expect("rows");
    let place = rows
        .column_names()
        .iter()
        .position(|other| other == name)
        .expect("a column");
    (0..rows.count())
        .map(|row| rows.with_value(row, place, str::to_owned))
        .collect()
}

const MS: u64 = 1_000_000;

#[test]
fn plain_times_are_offsets_from_the_start() {
    let recording = read(&request(), "0.5\n1.25\n1.25\n4\n").unwrap();
    assert_eq!(
        times(&recording),
        [500 * MS, 1_250 * MS, 1_250 * MS, 4_000 * MS]
    );
    assert!(recording.rows().is_none());
    // The last arrival is followed by a mean gap.
    assert_eq!(recording.end_ns(), 4_000 * MS + 3_500 * MS / 3);
    let fast = RecordingOptions {
        speed: 10.0,
        ..request()
    };
    let recording = read(&fast, "0.5\n1.25\n1.25\n4\n").unwrap();
    assert_eq!(times(&recording), [50 * MS, 125 * MS, 125 * MS, 400 * MS]);
}

#[test]
fn fullest_second_counts_restarts() {
    let recording = read(&request(), "0.1\n0.2\n2.5\n3.1\n3.2\n3.45\n3.6\n").unwrap();
    assert_eq!(recording.max_arrivals_per_second(false), 4);
    // The mean gap after the last arrival ends at 4.18 s; arrivals of both ends are within one second.
    assert_eq!(recording.max_arrivals_per_second(true), 4);
    let recording = read(&request(), "0\n0.1\n2.9\n3.0\n").unwrap();
    assert_eq!(recording.max_arrivals_per_second(false), 2);
    let recording = read(&request(), "0\n0.1\n0.2\n2.7\n2.8\n2.9\n").unwrap();
    assert_eq!(recording.max_arrivals_per_second(true), 6);
    // A recording of half a second has twice its arrivals in a second, and some more at the edges.
    let recording = read(&request(), "0\n0.25\n").unwrap();
    assert!(recording.max_arrivals_per_second(true) >= 4);
}

#[test]
fn stamps_out_of_order_are_sorted_within_a_minute() {
    let line = |ms: u64, path: &str| {
        format!(
            "{{\"ts\":{},\"path\":\"{path}\"}}\n",
            1_764_352_593_000 + ms
        )
    };
    let text = [
        line(1_000, "/c"),
        line(0, "/a"),
        line(500, "/b"),
        line(60_900, "/d"),
    ]
    .concat();
    let recording = read(&request(), &text).unwrap();
    assert_eq!(times(&recording), [0, 500 * MS, 1_000 * MS, 60_900 * MS]);
    assert_eq!(column(&recording, "path"), ["/a", "/b", "/c", "/d"]);
    assert_eq!(recording.skipped_lines().sorted, 2);
    let text = [
        text,
        line(100_000, "/e"),
        line(200_000, "/e"),
        line(3, "/f"),
    ]
    .concat();
    let problem = read(&request(), &text).unwrap_err();
    assert!(
        problem.starts_with("access.log: line 7 is too far out of order"),
        "{problem}"
    );
}

#[test]
fn arrivals_of_one_second_are_spread_over_it() {
    let line = |second: u32| {
        format!("::1 - - [10/Oct/2000:13:55:{second:02} -0700] \"GET /{second} HTTP/1.1\" 200 1\n")
    };
    let text = [line(36), line(36), line(36), line(36), line(38), line(38)].concat();
    let recording = read(&request(), &text).unwrap();
    assert_eq!(
        times(&recording),
        [0, 250 * MS, 500 * MS, 750 * MS, 2_000 * MS, 2_500 * MS]
    );
    assert_eq!(
        column(&recording, "path"),
        ["/36", "/36", "/36", "/36", "/38", "/38"]
    );
}

#[test]
fn unreadable_lines_are_counted_and_named() {
    let recording = read(&request(), "1\nx\n2\ny\n3\n").unwrap();
    let left_out = recording.skipped_lines();
    assert_eq!(left_out.unreadable, 2);
    assert_eq!(
        left_out.first_unreadable,
        [(2, "it is not a time"), (4, "it is not a time")]
    );
    assert!(
        recording
            .notes()
            .concat()
            .contains("line 2: it is not a time")
    );
    let problem = read(&request(), "1\nx\ny\nz\n").unwrap_err();
    assert!(problem.contains("more than half"), "{problem}");
    assert!(read(&request(), "").is_err());
}

#[test]
fn filters_window_and_sample_choose_lines() {
    let line = |n: u64| {
        let (client, method) = (n % 50, if n.is_multiple_of(2) { "GET" } else { "POST" });
        format!(
            "{},10.0.0.{client},{method}\n",
            1_764_352_593.0 + n as f64 / 8.0
        )
    };
    let text: String = ["time,client,method\n".to_owned()]
        .into_iter()
        .chain((0..1_000).map(line))
        .collect();
    let all = read(&request(), &text).unwrap();
    assert_eq!(all.count(), 1_000);
    let only_get = RecordingOptions {
        filters: vec!["method=GET".parse().unwrap()],
        ..request()
    };
    let found = read(&only_get, &text).unwrap();
    assert_eq!((found.count(), found.skipped_lines().excluded), (500, 500));
    let window = RecordingOptions {
        window: Some("10s..20s".parse().unwrap()),
        ..request()
    };
    let found = read(&window, &text).unwrap();
    assert_eq!((found.count(), found.end_ns()), (80, 10_000 * MS));
    assert_eq!(times(&found)[..2], [0, 125 * MS]);
    let sample = RecordingOptions {
        sample: Some(0.3),
        ..request()
    };
    let found = read(&sample, &text).unwrap();
    let mut clients = column(&found, "client");
    clients.sort();
    clients.dedup();
    // A sampled client keeps all of its lines.
    assert_eq!(found.count(), clients.len() as u64 * 20);
    assert!((5..=25).contains(&clients.len()), "{}", clients.len());
    let missing = RecordingOptions {
        filters: vec!["host=x".parse().unwrap()],
        ..request()
    };
    assert!(
        read(&missing, &text)
            .unwrap_err()
            .contains("time, client, method")
    );
}

#[test]
fn large_files_are_read_back_from_disk() {
    let line = |n: u64| format!("{}.{:03},/path/of/call/number/{n}\n", n / 1_000, n % 1_000);
    let text: String = ["time,path\n".to_owned()]
        .into_iter()
        .chain((0..200_000).map(line))
        .collect();
    let recording = read(&request(), &text).unwrap();
    assert!(matches!(
        recording.inner.rows.as_ref().unwrap().values,
        Spool::File(_)
    ));
    assert!(
        times(&recording)
            .iter()
            .zip(0..)
            .all(|(at, n)| *at == n * MS)
    );
    let rows = recording.rows().unwrap();
    for row in [0, 63, 64, 130_001, 199_999] {
        assert_eq!(
            rows.with_value(row, 1, str::to_owned),
            format!("/path/of/call/number/{row}")
        );
    }
    assert_eq!(rows.value_length_bounds(1), (22, 27));
}

#[test]
fn other_hosts_are_counted_and_named() {
    let entry = |second: u64, url: &str| {
        format!(
            r#"{{"startedDateTime": "2026-11-29T10:00:0{second}Z", "request": {{"method": "GET", "url": "{url}"}}}}"#
        )
    };
    let entries = [
        entry(0, "https://shop.test/a"),
        entry(1, "https://cdn.test/b"),
        entry(2, "https://api.test:8443/c"),
        entry(3, "https://shop.test/d"),
        entry(4, "https://cdn.test/e"),
    ];
    let text = format!(r#"{{"log": {{"entries": [{}]}}}}"#, entries.join(","));
    let all = read(&request(), &text).unwrap();
    assert_eq!((all.count(), all.hosts().hosts()), (5, 3));
    assert!(all.hosts().includes_others_than("shop.test:443"));
    let notes = all.notes().join("\n");
    assert!(
        notes.contains("all are sent to one target: cdn.test (2), shop.test (2)"),
        "{notes}"
    );
    let own = RecordingOptions {
        own_host: Some("shop.test:443".to_owned()),
        ..request()
    };
    let own = read(&own, &text).unwrap();
    assert_eq!(column(&own, "path"), ["/a", "/d"]);
    let notes = own.notes().join("\n");
    let told = "3 entries of access.log were left out, which went to other hosts than the target: cdn.test (2), api.test:8443 (1)";
    assert!(notes.contains(told), "{notes}");
}
