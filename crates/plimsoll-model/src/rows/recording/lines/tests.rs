use super::*;

fn read(text: &str) -> (Vec<String>, Vec<(u64, RowResult)>) {
    let mut lines = RecordingLines::new(Box::new(text.as_bytes()), None, None).unwrap();
    let mut rows = Vec::new();
    while let Some(row) = lines.next().unwrap() {
        rows.push(row);
    }
    (lines.column_names().to_vec(), rows)
}

/// Returns the line's columns by name, and its time in nanoseconds since 1970.
fn only(text: &str) -> (i64, Vec<(String, String)>) {
    let (names, mut rows) = read(text);
    assert_eq!(rows.len(), 1, "{rows:?}");
    let (stamp, values) = rows.remove(0).1.unwrap();
    (
        stamp.ns,
        names
            .into_iter()
            .zip(values)
            .filter(|(_, value)| !value.is_empty())
            .collect(),
    )
}

fn value<'a>(columns: &'a [(String, String)], name: &str) -> &'a str {
    let found = columns.iter().find(|(other, _)| other == name);
    found.map_or("", |(_, value)| value)
}

#[test]
fn access_logs_of_five_programs_are_read() {
    let nginx = r#"203.0.113.7 - frank [10/Oct/2000:13:55:36 -0700] "GET /a?b=c HTTP/1.1" 200 2326 "http://x/y" "Mozilla/4.08 [en] (\"W\"; I)""#;
    let (ns, columns) = only(nginx);
    assert_eq!(ns, 971_211_336_000_000_000);
    assert_eq!(value(&columns, "client"), "203.0.113.7");
    assert_eq!(value(&columns, "method"), "GET");
    assert_eq!(value(&columns, "path"), "/a?b=c");
    assert_eq!(value(&columns, "status"), "200");
    assert_eq!(value(&columns, "referer"), "http://x/y");
    let haproxy = r#"Feb  6 12:14:14 localhost haproxy[14389]: 10.0.1.2:33317 [06/Feb/2009:12:14:14.655] http-in static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {1wt.eu} {} "GET /index.html HTTP/1.1""#;
    let (ns, columns) = only(haproxy);
    assert_eq!(ns, 1_233_922_454_655_000_000);
    assert_eq!(value(&columns, "client"), "10.0.1.2");
    assert_eq!(value(&columns, "path"), "/index.html");
    assert_eq!(value(&columns, "status"), "200");
    let envoy = r#"[2016-04-15T20:17:00.310Z] "POST /api/v1/locations HTTP/2" 204 - 154 0 226 100 "10.0.35.28" "nsq2http" "cc21d9b0" "locations" "tcp://10.0.2.1:80""#;
    let (ns, columns) = only(envoy);
    assert_eq!(ns, 1_460_751_420_310_000_000);
    assert_eq!(
        (value(&columns, "method"), value(&columns, "status")),
        ("POST", "204")
    );
    let alb = r#"https 2018-07-02T22:23:00.186641Z app/my-loadbalancer/50dc6c495c0c9188 192.168.131.39:2817 10.0.0.1:80 0.086 0.048 0.037 200 200 0 57 "GET https://www.example.com:443/x?y HTTP/1.1" "curl/7.46.0" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 arn:aws:elasticloadbalancing:us-east-2:123456789012:targetgroup/my-targets/73e2d6bc24d8a067 "Root=1-58337281-1d84f3d73c47ec4e58577259" "www.example.com" "arn:aws:acm:us-east-2:123456789012:certificate/12345678" 1 2018-07-02T22:22:48.364000Z "authenticate,forward" "-" "-" "10.0.0.1:80" "200" "-" "-""#;
    let (ns, columns) = only(alb);
    assert_eq!(ns, 1_530_570_168_364_000_000);
    assert_eq!(value(&columns, "client"), "192.168.131.39");
    assert_eq!(
        (value(&columns, "host"), value(&columns, "path")),
        ("www.example.com:443", "/x?y")
    );
    let json = r#"{"msec":"1764352593.500","request_time":"0.250","remote_addr":"::1","request":"GET /z HTTP/2.0","status":200}"#;
    let (ns, columns) = only(json);
    // nginx logs a request when the answer has ended.
    assert_eq!(ns, 1_764_352_593_250_000_000);
    assert_eq!(
        (
            value(&columns, "method"),
            value(&columns, "path"),
            value(&columns, "client")
        ),
        ("GET", "/z", "::1")
    );
    let caddy = r#"{"level":"info","ts":1646861401.5241024,"request":{"remote_ip":"127.0.0.1","method":"GET","host":"localhost","uri":"/q"},"status":200}"#;
    let (ns, columns) = only(caddy);
    assert_eq!(ns, 1_646_861_401_524_102_400);
    assert_eq!(
        (value(&columns, "path"), value(&columns, "host")),
        ("/q", "localhost")
    );
}

#[test]
fn traces_of_language_models_are_read() {
    let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n";
    let (ns, columns) = only(azure);
    assert_eq!(ns, 1_700_158_546_680_590_000);
    assert_eq!(value(&columns, "GeneratedTokens"), "44");
    let burst = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n";
    let (ns, columns) = only(burst);
    assert_eq!(
        (ns, value(&columns, "Request tokens")),
        (5_000_000_000, "472")
    );
    let mooncake =
        r#"{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}"#;
    let (ns, columns) = only(mooncake);
    assert_eq!(
        (ns, value(&columns, "output_length")),
        (27_482_000_000, "52")
    );
}

#[test]
fn unreadable_lines_have_number_and_reason() {
    let (_, rows) = read("# comment\n0.5\n\nsoon\n1.5");
    let found: Vec<(u64, bool)> = rows
        .iter()
        .map(|(line, row)| (*line, row.is_ok()))
        .collect();
    assert_eq!(found, [(2, true), (4, false), (5, true)]);
    let (_, rows) = read("time,a\n1,x\n2\nthree,y\n");
    let found: Vec<(u64, bool)> = rows
        .iter()
        .map(|(line, row)| (*line, row.is_ok()))
        .collect();
    assert_eq!(found, [(2, true), (3, false), (4, false)]);
    assert!(RecordingLines::new(Box::new(&b"what is this\n"[..]), None, None).is_err());
}

#[test]
fn compressed_files_are_decompressed() {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, b"0.5\n1.5\n").unwrap();
    let packed = packed.finish().unwrap();
    let mut lines = RecordingLines::new(Box::new(&packed[..]), None, None).unwrap();
    let (line, row) = lines.next().unwrap().unwrap();
    assert_eq!((line, row.unwrap().0.ns), (1, 500_000_000));
}
