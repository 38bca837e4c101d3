//! Requests that RFC 9113 forbids a relay to forward.

use plimsoll_wire::http2::write;

pub(crate) type FieldList = Vec<(Vec<u8>, Vec<u8>)>;

/// Encodes a field list as a block of literals, which may contain any byte.
pub(crate) fn block(list: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in list {
        block.push(0);
        for text in [name, value] {
            assert!(text.len() < 127);
            block.push(text.len() as u8);
            block.extend_from_slice(text);
        }
    }
    block
}

pub(crate) fn list(fields: &[(&str, &str)]) -> FieldList {
    let bytes = |text: &str| text.as_bytes().to_vec();
    let fields = fields.iter();
    fields.map(|(n, v)| (bytes(n), bytes(v))).collect()
}

/// The parts of a request after its header fields.
enum RequestPart {
    Data(&'static [u8], bool),
    Trailers(&'static [(&'static str, &'static str)], bool),
}

pub(crate) struct RequestShape {
    list: FieldList,
    parts: Vec<RequestPart>,
}

/// Returns a valid request for `path` without an end.
pub(crate) fn request(path: &str) -> FieldList {
    list(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "host.example:8080"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ])
}

/// Returns the request with another value in one field.
fn with(path: &str, name: &str, value: &[u8]) -> FieldList {
    let mut list = request(path);
    for field in &mut list {
        if field.0 == name.as_bytes() {
            field.1 = value.to_vec();
        }
    }
    list
}

/// Returns the request with one more field, at the end or before the regular ones.
fn with_field(path: &str, name: &[u8], value: &[u8]) -> FieldList {
    let mut list = request(path);
    let place = if name.starts_with(b":") {
        4
    } else {
        list.len()
    };
    list.insert(place, (name.to_vec(), value.to_vec()));
    list
}

pub(crate) const MESSAGE: &[u8] = &[0, 0, 0, 0, 0];

/// Values that are invalid in every pseudo-header field.
const INVALID_VALUES: [(&str, &[u8]); 27] = [
    (":method", b""),
    (":method", b"PO ST"),
    (":method", b"GET\r\nx: y"),
    (":method", b"POST\n"),
    (":method", b"POST\0"),
    (":path", b""),
    (":path", b"a.B/C"),
    (":path", b"*"),
    (":path", b"/a b"),
    (":path", b"/a\r\nx: y"),
    (":path", b"/a\n"),
    (":path", b"/a\0"),
    (":path", b"/a\x7f"),
    (":path", b"/a#b"),
    (":path", b"/\xc3\xa4"),
    (":scheme", b""),
    (":scheme", b"1http"),
    (":scheme", b"ht tp"),
    (":scheme", b"http\r\n"),
    (":authority", b""),
    (":authority", b"user@host"),
    (":authority", b"a b"),
    (":authority", b"a\r\nb"),
    (":authority", b"a/b"),
    (":authority", b"a:x"),
    (":authority", b"[::1"),
    (":authority", b"a\0"),
];

/// Fields that are forbidden in requests, or beside those that the request has.
const FORBIDDEN_FIELDS: [(&[u8], &[u8]); 36] = [
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":scheme", b"http"),
    (b":authority", b"host.example:8080"),
    (b":status", b"200"),
    (b":protocol", b"websocket"),
    (b":unknown", b"x"),
    (b":", b"x"),
    (b"host", b"other.example"),
    (b"host", b"host.example:8081"),
    (b"content-length", b""),
    (b"content-length", b"+5"),
    (b"content-length", b"5,5"),
    (b"content-length", b"0x5"),
    (b"content-length", b"99999999999999999999"),
    (b"te", b"gzip"),
    (b"te", b"trailers, deflate"),
    (b"connection", b"close"),
    (b"keep-alive", b"1"),
    (b"proxy-connection", b"close"),
    (b"transfer-encoding", b"chunked"),
    (b"upgrade", b"h2c"),
    (b"", b"x"),
    (b"Upper", b"x"),
    (b"a b", b"x"),
    (b"a:b", b"x"),
    (b"a\r\nb", b"x"),
    (b"a\0", b"x"),
    (b"a(", b"x"),
    (b"\xc3\xa4", b"x"),
    (b"x", b"a\r\nb: c"),
    (b"x", b"a\nb"),
    (b"x", b"a\0b"),
    (b"x", b"a\x01b"),
    (b"x", b" a"),
    (b"x", b"a\t"),
];

/// Returns the requests that RFC 9113 forbids a relay to forward.
pub(crate) fn shapes(path: &str) -> Vec<RequestShape> {
    let whole = || vec![RequestPart::Data(MESSAGE, true)];
    let mut shapes = Vec::new();
    let mut add = |list, parts| shapes.push(RequestShape { list, parts });
    for name in [":method", ":scheme", ":path"] {
        let mut list = request(path);
        list.retain(|(known, _)| known != name.as_bytes());
        add(list, whole());
    }
    for (name, value) in INVALID_VALUES {
        add(with(path, name, value), whole());
    }
    for (name, value) in FORBIDDEN_FIELDS {
        add(with_field(path, name, value), whole());
    }
    // A pseudo-header field after regular fields.
    let mut late = request(path);
    let scheme = late.remove(1);
    late.push(scheme);
    add(late, whole());
    let length = |length: &str| with_field(path, b"content-length", length.as_bytes());
    let mut twice = length("5");
    twice.push((b"content-length".to_vec(), b"5".to_vec()));
    add(twice, whole());
    let mut hosts = with_field(path, b"host", b"host.example:8080");
    hosts.push((b"host".to_vec(), b"host.example:8080".to_vec()));
    add(hosts, whole());
    // Data whose length differs from `content-length`.
    add(length("6"), whole());
    add(length("4"), whole());
    add(length("0"), whole());
    add(
        length("10"),
        vec![
            RequestPart::Data(MESSAGE, false),
            RequestPart::Data(b"", true),
        ],
    );
    add(
        length("5"),
        vec![
            RequestPart::Data(MESSAGE, false),
            RequestPart::Data(b"x", true),
        ],
    );
    add(
        length("9"),
        vec![
            RequestPart::Data(MESSAGE, false),
            RequestPart::Trailers(&[("x", "y")], true),
        ],
    );
    for trailers in [
        &[(":path", "/")][..],
        &[(":method", "POST")],
        &[(":status", "200")],
        &[(":authority", "host.example:8080")],
        &[("x", "y"), (":scheme", "http")],
        &[("Upper", "x")],
        &[("x", "a\nb")],
        &[("content-length", "5")],
        &[("host", "host.example:8080")],
        &[("connection", "close")],
    ] {
        add(
            request(path),
            vec![
                RequestPart::Data(MESSAGE, false),
                RequestPart::Trailers(trailers, true),
            ],
        );
    }
    add(
        request(path),
        vec![
            RequestPart::Data(MESSAGE, false),
            RequestPart::Trailers(&[("x", "y")], false),
        ],
    );
    assert!(shapes.len() >= 75, "{}", shapes.len());
    shapes
}

impl RequestShape {
    /// Returns the frames one by one.
    pub(crate) fn frames(&self, stream: u32) -> Vec<Vec<u8>> {
        let mut head = Vec::new();
        let is_end = write::EndStream(self.parts.is_empty());
        write::header_block(&mut head, stream, &block(&self.list), is_end);
        let mut frames = vec![head];
        for part in &self.parts {
            let mut frame = Vec::new();
            match part {
                RequestPart::Data(data, end) => {
                    write::data(&mut frame, stream, data, write::EndStream(*end))
                }
                RequestPart::Trailers(fields, end) => {
                    write::header_block(
                        &mut frame,
                        stream,
                        &block(&list(fields)),
                        write::EndStream(*end),
                    );
                }
            }
            frames.push(frame);
        }
        frames
    }

    /// Writes all frames.
    pub(crate) fn write(&self, stream: u32, out: &mut Vec<u8>) {
        out.extend(self.frames(stream).concat());
    }
}
