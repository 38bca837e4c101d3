//! Invalid answers: messages over the limit, without trailers, or without an end.

use super::*;

/// Starts a server that answers every complete request with what `answer` returns for its stream;
/// returns its port. It listens until the test process ends.
fn server(answer: impl Fn(u32) -> Vec<u8> + Clone + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = answer.clone();
            thread::spawn(move || serve(stream, answer));
        }
    });
    port
}

fn serve(mut stream: TcpStream, answer: impl Fn(u32) -> Vec<u8>) {
    let mut out = Vec::new();
    write::settings(&mut out, &[]);
    let (mut pending, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        if stream.write_all(&out).is_err() {
            return;
        }
        out.clear();
        let Ok(n @ 1..) = stream.read(&mut buffer) else {
            return;
        };
        pending.extend_from_slice(&buffer[..n]);
        let mut input = pending.strip_prefix(http2::PREFACE).unwrap_or(&pending);
        while let Ok(Some((head, _))) = http2::split_frame(&mut input, 1 << 14) {
            match head.kind() {
                kind::SETTINGS if !head.has_flag(flags::ACK) => write::settings_ack(&mut out),
                kind::DATA if head.has_flag(flags::END_STREAM) => {
                    out.extend_from_slice(&answer(head.stream()));
                }
                _ => {}
            }
        }
        pending = input.to_vec();
    }
}

fn headers(stream: u32, fields: &[(&str, &str)], end: bool) -> Vec<u8> {
    let mut out = Vec::new();
    write::header_block(
        &mut out,
        stream,
        &Encoder::encode_plain(fields.iter().copied()),
        write::EndStream(end),
    );
    out
}

fn head(stream: u32) -> Vec<u8> {
    let fields = [(":status", "200"), ("content-type", "application/grpc")];
    headers(stream, &fields, false)
}

fn data(stream: u32, bytes: &[u8], end: bool) -> Vec<u8> {
    let mut out = Vec::new();
    write::data(&mut out, stream, bytes, write::EndStream(end));
    out
}

fn ok_trailers(stream: u32) -> Vec<u8> {
    headers(stream, &[("grpc-status", "0")], true)
}

const EMPTY: &[u8] = &[0, 0, 0, 0, 0];

/// Asserts that every call of `method` ends with `code` in bounded time and is reported.
#[track_caller]
fn assert_calls_end_with(
    method: &str,
    flags: &[&str],
    code: &str,
    words: &str,
    answer: impl Fn(u32) -> Vec<u8> + Clone + Send + 'static,
) {
    let place = Place::new();
    let url = format!("grpc://127.0.0.1:{}", server(answer));
    let method = format!("grpc.examples.echo.Echo/{method}");
    let mut arguments = vec!["grpc", &url, "-q", "--json", "-m", &method];
    // Short only if the deadline is what ends the calls: a busy machine must not cause timeouts.
    let deadline = match code {
        "DEADLINE_EXCEEDED" => "1s",
        _ => "60s",
    };
    arguments.extend(["--clients", "2", "--calls", "6", "--deadline", deadline]);
    arguments.extend(flags);
    let run = place.expect_run(1, &arguments);
    assert_eq!(errors(&run), [(code, 6)], "{run}");
    assert_eq!(run["count_check"]["matches"], true, "{run}");
    assert_eq!(run["count_check"]["in_flight"], 0, "{run}");
    let said = run["details"].to_string();
    assert!(said.contains(words), "{words:?} in {said}");
}

#[test]
fn message_over_limit_fails_call() {
    let large = |stream| [head(stream), data(stream, &[0, 0, 0x50, 0, 0, 1], false)].concat();
    let words = "a message of 5242880 bytes, over the limit of 4194304";
    assert_calls_end_with("UnaryEcho", &[], "MESSAGE_TOO_LARGE", words, large);
    assert_calls_end_with(
        "ServerStreamingEcho",
        &[],
        "MESSAGE_TOO_LARGE",
        words,
        large,
    );
    let small = |stream| [head(stream), data(stream, &[0, 0, 0, 0, 9], false)].concat();
    let words = "a message of 9 bytes, over the limit of 8";
    assert_calls_end_with(
        "UnaryEcho",
        &["--max-message", "8B"],
        "MESSAGE_TOO_LARGE",
        words,
        small,
    );
}

#[test]
fn missing_trailers_fail_call() {
    let words = "without grpc-status";
    for method in ["UnaryEcho", "ServerStreamingEcho"] {
        assert_calls_end_with(method, &[], "MISSING_STATUS", words, |stream| {
            [head(stream), data(stream, EMPTY, true)].concat()
        });
        assert_calls_end_with(method, &[], "MISSING_STATUS", words, |stream| {
            let nothing = headers(stream, &[("x-odd", "1")], true);
            [head(stream), data(stream, EMPTY, false), nothing].concat()
        });
    }
}

#[test]
fn unrequested_compression_fails_call() {
    let zstd = |stream| {
        let fields = [
            (":status", "200"),
            ("content-type", "application/grpc"),
            ("grpc-encoding", "zstd"),
        ];
        let message = data(stream, &[1, 0, 0, 0, 1, 7], false);
        [
            headers(stream, &fields, false),
            message,
            ok_trailers(stream),
        ]
        .concat()
    };
    for flags in [&[][..], &["--compression", "gzip"]] {
        let code = "COMPRESSION_UNSUPPORTED";
        assert_calls_end_with("UnaryEcho", flags, code, "compressed with `zstd`", zstd);
        assert_calls_end_with(
            "ServerStreamingEcho",
            flags,
            code,
            "compressed with `zstd`",
            zstd,
        );
    }
}

#[test]
fn wrong_response_message_count_is_an_error() {
    let messages = |n: usize| {
        move |stream| {
            [
                head(stream),
                data(stream, &EMPTY.repeat(n), false),
                ok_trailers(stream),
            ]
            .concat()
        }
    };
    assert_calls_end_with(
        "UnaryEcho",
        &[],
        "BAD_ANSWER",
        "with 2 messages",
        messages(2),
    );
    assert_calls_end_with(
        "UnaryEcho",
        &[],
        "BAD_ANSWER",
        "with 0 messages",
        messages(0),
    );
    let expect = ["--expect", "3"];
    assert_calls_end_with(
        "ServerStreamingEcho",
        &expect,
        "STREAM_LONG",
        "more than the 3",
        messages(4),
    );
    assert_calls_end_with(
        "ServerStreamingEcho",
        &expect,
        "STREAM_SHORT",
        "after 2 messages",
        messages(2),
    );
    assert_calls_end_with(
        "ClientStreamingEcho",
        &[],
        "STREAM_LONG",
        "more than the 1",
        messages(2),
    );
    assert_calls_end_with(
        "ClientStreamingEcho",
        &[],
        "STREAM_SHORT",
        "after 0 messages",
        messages(0),
    );
}

#[test]
fn endless_answer_fails_by_deadline() {
    for method in ["UnaryEcho", "BidirectionalStreamingEcho"] {
        assert_calls_end_with(method, &[], "DEADLINE_EXCEEDED", "", |_| Vec::new());
        assert_calls_end_with(method, &[], "DEADLINE_EXCEEDED", "", |stream| {
            [head(stream), data(stream, EMPTY, false)].concat()
        });
    }
}

#[test]
fn silent_server_times_out_service_listing() {
    let place = Place::new();
    // One server sends SETTINGS and answers no request; the other does not even send SETTINGS.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let ports = [
        server(|_| Vec::new()),
        silent.local_addr().expect("bound").port(),
    ];
    let ask = |port: u16| {
        let output = place.run(&["grpc", "list", &format!("grpc://127.0.0.1:{port}")]);
        assert_eq!(output.status.code(), Some(1), "{}", stderr_of(&output));
        stderr_of(&output)
    };
    // Both attempts take ten seconds.
    let (printed, _) = thread::scope(|scope| {
        let first = scope.spawn(|| ask(ports[0]));
        let second = scope.spawn(|| ask(ports[1]));
        (
            first.join().expect("reported"),
            second.join().expect("reported"),
        )
    });
    assert!(
        printed.contains("its services: no answer within 10 s"),
        "{printed}"
    );
}
