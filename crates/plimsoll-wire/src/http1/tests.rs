use super::*;

/// Complete responses with their bodies, and how the connection ended.
type ReadResult = (
    Vec<(HttpResponse, Vec<u8>)>,
    Result<Option<HttpResponse>, Http1Error>,
);

/// Reads all responses in `bytes`, in pieces of `step` bytes.
fn read(bytes: &[u8], step: usize, max_body: u64) -> ReadResult {
    let mut responses = ResponseReader::new(max_body);
    let (mut found, mut body) = (Vec::new(), Vec::new());
    for mut piece in bytes.chunks(step) {
        while !piece.is_empty() {
            match responses.consume(piece, |data| body.extend_from_slice(data)) {
                Ok((taken, response)) => {
                    found.extend(response.map(|whole| (whole, std::mem::take(&mut body))));
                    piece = &piece[taken..];
                }
                Err(e) => return (found, Err(e)),
            }
        }
    }
    let end = responses.on_end_of_stream();
    if let Ok(Some(whole)) = &end {
        assert_eq!(whole.body, body.len() as u64);
    }
    (found, end)
}

/// Returns a response with these fields, followed by `rest`.
fn ok_response(fields: &str, rest: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n{rest}").into_bytes()
}

fn chunked_response(rest: &str) -> Vec<u8> {
    ok_response("Transfer-Encoding: chunked", rest)
}

/// Checks that `bytes` are rejected for this reason in every split.
fn assert_rejected(bytes: &[u8], error: &Http1Error) {
    for step in [1, 7, 1_000, bytes.len()] {
        let (found, end) = read(bytes, step, 1 << 20);
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]);
        assert_eq!((found.len(), end), (0, Err(error.clone())), "{text}");
    }
}

fn response(status: u16, reason: &str, body: u64, closes: bool) -> HttpResponse {
    HttpResponse {
        status,
        reason: reason.into(),
        body,
        closes,
    }
}

#[test]
fn responses_parse_in_every_split() {
    let bytes: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n\
        HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello\
        HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=1\r\nabc\r\nA \r\n0123456789\r\n00\r\nT: 1\r\nU:\r\n\r\n\
        HTTP/1.1 204 Nothing\r\n\r\n\
        HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n\
        HTTP/1.0 200 OK\r\nContent-Length: 3, 3\r\nConnection: keep-alive\r\ncontent-length: 3\r\n\r\nabc\
        HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: foo, Close\r\nConnection: keep-alive\r\n\r\n\
        HTTP/1.0 404 Not Found\r\n\r\nto the end";
    for step in 1..=bytes.len() {
        let (found, end) = read(bytes, step, 1 << 20);
        let (found, bodies): (Vec<HttpResponse>, Vec<Vec<u8>>) = found.into_iter().unzip();
        assert_eq!(
            found,
            [
                response(200, "OK", 5, false),
                response(200, "OK", 13, false),
                response(204, "Nothing", 0, false),
                response(304, "Not Modified", 0, false),
                response(200, "OK", 3, false),
                response(200, "OK", 0, true),
            ],
            "in pieces of {step}"
        );
        assert_eq!(
            bodies,
            [&b"hello"[..], b"abc0123456789", b"", b"", b"abc", b""]
        );
        assert_eq!(end, Ok(Some(response(404, "Not Found", 10, true))));
    }
}

#[test]
fn truncated_malformed_line_is_head_error() {
    let mut head = b"HTTP/1.1 200 OK\r\nX: ".to_vec();
    head.resize(1_500, b'x');
    head.extend_from_slice(b"\r\nBad\0");
    for step in [1, 2, head.len()] {
        let mut responses = ResponseReader::new(100);
        let taken: Result<(), Http1Error> = head
            .chunks(step)
            .try_for_each(|piece| responses.consume(piece, |_| ()).map(|_| ()));
        let error = taken
            .and_then(|()| responses.on_end_of_stream().map(|_| ()))
            .unwrap_err();
        assert!(matches!(error, Http1Error::Head(_)), "by {step}: {error}");
    }
}

#[test]
fn truncated_or_contradictory_responses_fail() {
    let wrong_length = |text: &str| Http1Error::ContentLength(text.to_owned());
    let coding = |text: &str| Http1Error::TransferCoding(text.to_owned());
    for (bytes, error) in [
        (
            ok_response("Content-Length: 5", "hell"),
            Http1Error::Short {
                seen: 4,
                promised: 5,
            },
        ),
        (
            b"HTTP/1.1 200 OK\r\nConte".to_vec(),
            Http1Error::EndedInHead,
        ),
        (
            chunked_response("5\r\nab"),
            Http1Error::EndedInChunks { seen: 2 },
        ),
        (
            chunked_response("0\r\nX: y\r\n"),
            Http1Error::EndedInChunks { seen: 0 },
        ),
        (
            ok_response("Content-Length: 5\r\nContent-Length: 6", ""),
            Http1Error::TwoLengths(5, 6),
        ),
        (
            ok_response("Content-Length: 5, 6", ""),
            Http1Error::TwoLengths(5, 6),
        ),
        (ok_response("Content-Length: x", ""), wrong_length("x")),
        (ok_response("Content-Length: +5", ""), wrong_length("+5")),
        (ok_response("Content-Length: ", ""), wrong_length("")),
        (ok_response("Content-Length: 5,", ""), wrong_length("")),
        (
            ok_response("Content-Length: 18446744073709551616", ""),
            wrong_length("18446744073709551616"),
        ),
        (
            ok_response("Content-Length: 5\r\nTransfer-Encoding: chunked", ""),
            Http1Error::LengthAndCoding,
        ),
        (
            ok_response("Transfer-Encoding: chunked\r\nContent-Length: 5", ""),
            Http1Error::LengthAndCoding,
        ),
        (
            b"HTTP/1.1 204 X\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec(),
            Http1Error::LengthAndCoding,
        ),
        (ok_response("Transfer-Encoding: gzip", ""), coding("gzip")),
        (
            ok_response("Transfer-Encoding: gzip, chunked", ""),
            coding("gzip, chunked"),
        ),
        (
            ok_response(
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
                "",
            ),
            coding("chunked"),
        ),
        (
            b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec(),
            Http1Error::OldCoding,
        ),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n".to_vec(),
            Http1Error::Switching,
        ),
        (b"\x15\x03\x01\x00\x02\x02\x46".to_vec(), Http1Error::Tls),
        (
            b"SSH-2.0-OpenSSH\r\n".to_vec(),
            Http1Error::Head(httparse::Error::Version),
        ),
    ] {
        assert_rejected(&bytes, &error);
    }
}

#[test]
fn ambiguous_response_heads_are_rejected() {
    for fields in [
        // Folded line (RFC 9112 §5.2), bare CR (§2.2), whitespace before the colon (§5.1), NUL.
        "X: a\r\n b",
        " X: a",
        "X: a\rb",
        "X: a\r\r\nContent-Length: 5",
        "Content-Length : 5",
        "X: a\0b",
        "X",
    ] {
        let (found, end) = read(&ok_response(fields, ""), 1_000, 0);
        assert!(found.is_empty(), "{fields:?}");
        assert!(
            matches!(end, Err(Http1Error::Head(_))),
            "{fields:?} {end:?}"
        );
    }
}

#[test]
fn malformed_chunks_are_rejected() {
    for rest in [
        "0x5\r\n",
        " 5\r\n",
        "\r\n",
        ";x\r\n",
        "-5\r\n",
        "zz\r\n",
        "FFFFFFFFFFFFFFFFF\r\n",
        "5\nhello",
        "5;x\ry\r\nhello",
        "1\r\na\r\n1\n",
        // More data than the chunk size, rejected before any line end.
        "1\r\nabc\r\n",
        "5\r\nhellow",
        "5\r\nhelloworld",
        "5\r\nhello\rw",
        "5\r\nhello\n",
    ] {
        assert_rejected(&chunked_response(rest), &Http1Error::Chunk);
    }
    for trailer in [
        "X\r\n",
        ": x\r\n",
        " X: y\r\n",
        "X : y\r\n",
        "X: y\n",
        "X: y\rz\r\n",
    ] {
        assert_rejected(
            &chunked_response(&format!("0\r\n{trailer}")),
            &Http1Error::Trailer,
        );
        let after = format!("0\r\nA: b\r\n{trailer}");
        assert_rejected(&chunked_response(&after), &Http1Error::Trailer);
    }
}

#[test]
fn heads_chunk_lines_and_trailers_are_bounded() {
    let head = "x: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n".repeat(100);
    let long = format!("x: {}", "y".repeat(MAX_HEAD_BYTES));
    let too_long = (vec![], Err(Http1Error::HeadTooLong(MAX_HEAD_BYTES)));
    for bytes in [
        ok_response(&long, ""),
        format!("HTTP/1.1 200 OK\r\n{long}").into_bytes(),
        b"HTTP/1.1 100 Continue\r\n\r\n".repeat(3_000),
    ] {
        for step in [100, 1_000, bytes.len()] {
            assert_eq!(read(&bytes, step, 0), too_long);
        }
    }
    // A head of maximum length is accepted, and one byte more is not.
    for more in [0, 1] {
        let fill = MAX_HEAD_BYTES - ok_response(&format!("{head}x: "), "").len() + more;
        let bytes = ok_response(
            &format!("{head}x: {}\r\nContent-Length: 0", "y".repeat(fill - 19)),
            "",
        );
        assert_eq!(bytes.len(), MAX_HEAD_BYTES + more);
        for step in [1_000, bytes.len()] {
            let (found, end) = read(&bytes, step, 0);
            assert_eq!((found.len(), end.is_ok()), (1 - more, more == 0));
        }
    }
    // A head may have as many fields as fit into it.
    let many = "x:\n".repeat(MAX_HEAD_BYTES / 3 - 50) + "Content-Length: 0";
    let (found, end) = read(&ok_response(&many, ""), 5_000, 0);
    assert_eq!((found.len(), end.is_ok()), (1, true));

    assert_rejected(&chunked_response(&"1".repeat(5_000)), &Http1Error::Chunk);
    assert_rejected(
        &chunked_response(&format!("1;{}", "x".repeat(5_000))),
        &Http1Error::Chunk,
    );
    let extended = format!("1;{}\r\na\r\n", "x".repeat(1_000));
    assert_rejected(&chunked_response(&extended.repeat(20)), &Http1Error::Chunk);
    let trailers = "x-more: and more\r\n".repeat(5_000);
    assert_rejected(
        &chunked_response(&format!("0\r\n{trailers}")),
        &Http1Error::TrailersTooLong(64 << 10),
    );
    let trailer =
        |length: usize| chunked_response(&format!("0\r\nx: {}\r\n\r\n", "y".repeat(length)));
    let (found, end) = read(&trailer(60_000), 1_000, 0);
    assert_eq!((found.len(), end.is_ok()), (1, true));
    assert_rejected(&trailer(70_000), &Http1Error::TrailersTooLong(64 << 10));
}

#[test]
fn trailers_accepted_up_to_limit() {
    let bytes = format!("0\r\nx: {}\r\ny: z\r\n\r\n", "y".repeat(70_000));
    for (max, is_over) in [(70_006, false), (70_007, true)] {
        for step in [1_000, bytes.len()] {
            let mut body = BodyReader::new_complete().with_max_trailer_bytes(max);
            body.restart(BodyFraming::Chunked, 10).unwrap();
            let mut pieces = bytes.as_bytes().chunks(step);
            let taken = pieces.try_for_each(|piece| body.consume(piece, &mut |_| ()).map(|_| ()));
            assert_eq!(taken.is_ok() && body.is_complete(), is_over, "{max} {step}");
        }
    }
}

#[test]
fn every_body_framing_is_bounded() {
    let too_long = (vec![], Err(Http1Error::BodyTooLong(4)));
    for (bytes, ends) in [
        (ok_response("Content-Length: 4", "four"), false),
        (chunked_response("3\r\nfou\r\n1\r\nr\r\n0\r\n\r\n"), false),
        (ok_response("Connection: close", "four"), true),
    ] {
        for step in [1, bytes.len()] {
            let (found, end) = read(&bytes, step, 4);
            assert_eq!(found.len(), usize::from(!ends));
            assert_eq!(end.unwrap().is_some(), ends);
            assert_ne!(read(&bytes, step, 3), too_long);
            assert_eq!(read(&bytes, step, 3).1, Err(Http1Error::BodyTooLong(3)));
        }
    }
    // A body that would be too long is rejected before it arrives.
    for bytes in [
        ok_response("Content-Length: 5", ""),
        chunked_response("3\r\nfou\r\n2\r\n"),
        chunked_response("ffffffffffffffff\r\n"),
    ] {
        assert_eq!(read(&bytes, bytes.len(), 4), too_long);
    }
}

#[test]
fn remaining_body_bytes_are_known() {
    let mut responses = ResponseReader::new(u64::MAX);
    for (bytes, left) in [
        (ok_response("Content-Length: 9", "abcd"), 5),
        (b"efghi".to_vec(), 0),
        (chunked_response("9\r\nab"), 7),
        (b"cdefghi\r\n".to_vec(), 0),
        (b"0\r\n\r\n".to_vec(), 0),
        (ok_response("", ""), 0),
    ] {
        let (taken, _) = responses.consume(&bytes, |_| ()).unwrap();
        assert_eq!((taken, responses.awaited_bytes()), (bytes.len(), left));
    }
    assert!(responses.has_begun());
}

#[test]
fn requests_parse_in_every_split() {
    let bytes: &[u8] =
        b"POST /a?b=c HTTP/1.1\r\nHost: x\r\nConnection: a\r\nCONNECTION: close , b\r\n\
        X-A: 1, 2\r\nx-a:3 \r\nContent-Length: 7\r\n\r\n{\"a\":1}";
    let size = bytes.len() - 7;
    for end in 0..=bytes.len() {
        let mut space = FieldStorage::new();
        let head = RequestHead::parse(&bytes[..end], 1_000, &mut space).unwrap();
        assert_eq!(head.is_some(), end >= size);
        let Some(head) = head else { continue };
        assert_eq!((head.method, head.target), ("POST", "/a?b=c"));
        assert_eq!((head.size, head.body), (size, BodyFraming::Length(7)));
        assert!(head.closes && head.is_1_1);
        assert!(head.fields.values("x-A").eq([&b"1, 2"[..], b"3"]));
        assert!(head.fields.lists_token("X-A", "2") && !head.fields.lists_token("X-A", "1, 2"));
        assert_eq!(head.fields.iter().count(), 6);
    }
    for (fields, closes, body) in [
        (" HTTP/1.1", false, BodyFraming::Length(0)),
        (" HTTP/1.0", true, BodyFraming::Length(0)),
        (
            " HTTP/1.0\r\nConnection: Keep-Alive",
            false,
            BodyFraming::Length(0),
        ),
        (
            " HTTP/1.1\r\nTransfer-Encoding: Chunked",
            false,
            BodyFraming::Chunked,
        ),
    ] {
        let text = format!("GET /{fields}\r\n\r\n");
        let mut space = FieldStorage::new();
        let head = RequestHead::parse(text.as_bytes(), 1_000, &mut space);
        let head = head.unwrap().unwrap();
        assert_eq!((head.closes, head.body), (closes, body), "{text}");
    }
}

#[test]
fn ambiguous_requests_are_rejected() {
    for (text, error) in [
        (
            "GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            Http1Error::LengthAndCoding,
        ),
        (
            "GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            Http1Error::TwoLengths(1, 2),
        ),
        (
            "GET / HTTP/1.1\r\nX: y\r\n z\r\n\r\n",
            Http1Error::Head(httparse::Error::HeaderName),
        ),
        (
            "GET / HTTP/1.1\r\nX: y\rz\r\n\r\n",
            Http1Error::Head(httparse::Error::HeaderValue),
        ),
        ("GET / HTTP/1.1\r\nX: ", Http1Error::HeadTooLong(18)),
        (
            "GET / HTTP/1.1\r\nX: y\r\n\r\n",
            Http1Error::HeadTooLong(18),
        ),
    ] {
        let max = if matches!(error, Http1Error::HeadTooLong(_)) {
            18
        } else {
            1_000
        };
        let mut space = FieldStorage::new();
        let head = RequestHead::parse(text.as_bytes(), max, &mut space);
        assert_eq!(head.err(), Some(error), "{text:?}");
    }
}

#[test]
fn written_messages_parse_as_intended() {
    let mut bytes = Vec::new();
    append_request_head(
        &mut bytes,
        "PUT",
        "/x",
        &[("Host", "h:1"), ("Content-Length", "0")],
    );
    assert_eq!(
        bytes,
        b"PUT /x HTTP/1.1\r\nHost: h:1\r\nContent-Length: 0\r\n\r\n"
    );
    bytes.clear();
    append_response_head(
        &mut bytes,
        431,
        &[("Content-Length", "0"), ("Connection", "close")],
    );
    let (found, end) = read(&bytes, 1_000, 0);
    let expected = response(431, "Request Header Fields Too Large", 0, true);
    assert_eq!((found, end), (vec![(expected, vec![])], Ok(None)));
}
