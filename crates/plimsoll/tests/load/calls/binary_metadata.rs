//! Binary metadata (`-bin`) that a step of a journey takes, and that a later one sends.

use std::sync::{Arc, Mutex};

use super::*;
use plimsoll_wire::hpack::Decoder;

/// The values that a server received, by name.
type ReceivedMetadata = Arc<Mutex<Vec<(String, String)>>>;

/// Starts a server that answers each call with four bytes as `token-bin` and a message with the text `text`, and collects
/// the metadata that begin with `x-`. It listens until the test process ends.
fn serve_tokens(text: &'static str) -> (u16, ReceivedMetadata) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let received = ReceivedMetadata::default();
    let collected = Arc::clone(&received);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let received = Arc::clone(&collected);
            thread::spawn(move || answer_calls(stream, text, &received));
        }
    });
    (port, received)
}

fn answer_calls(mut stream: TcpStream, text: &str, received: &ReceivedMetadata) {
    let (mut out, mut pending, mut buffer) = (Vec::new(), Vec::new(), [0; 4096]);
    let mut decoder = Decoder::new(4096, 1 << 16);
    write::settings(&mut out, &[]);
    while stream.write_all(&out).is_ok() {
        out.clear();
        let Ok(n @ 1..) = stream.read(&mut buffer) else {
            return;
        };
        pending.extend_from_slice(&buffer[..n]);
        let mut input = pending.strip_prefix(http2::PREFACE).unwrap_or(&pending);
        while let Ok(Some((head, payload))) = http2::split_frame(&mut input, 1 << 14) {
            match head.kind() {
                kind::SETTINGS if !head.has_flag(flags::ACK) => write::settings_ack(&mut out),
                kind::HEADERS => {
                    let decoded = decoder.decode(payload, |field| {
                        let [name, value] = [field.name, field.value]
                            .map(|bytes| String::from_utf8_lossy(bytes).into_owned());
                        if name.starts_with("x-") {
                            received.lock().expect("metadata").push((name, value));
                        }
                    });
                    assert!(decoded.is_ok());
                }
                kind::DATA if head.has_flag(flags::END_STREAM) => {
                    out.extend_from_slice(&answer(head.stream(), text));
                }
                _ => {}
            }
        }
        pending = input.to_vec();
    }
}

fn answer(stream: u32, text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let block = |out: &mut Vec<u8>, fields: &[(&str, &str)], is_end: bool| {
        let block = Encoder::encode_plain(fields.iter().copied());
        write::header_block(out, stream, &block, write::EndStream(is_end));
    };
    let head = [
        (":status", "200"),
        ("content-type", "application/grpc"),
        // Several values may be joined, and padding may be left out.
        ("token-bin", "AQIDBA,BQ"),
    ];
    block(&mut out, &head, false);
    let length = text.len() as u8;
    let message = [&[0, 0, 0, 0, length + 2, 0x0a, length], text.as_bytes()].concat();
    write::data(&mut out, stream, &message, write::EndStream(false));
    block(&mut out, &[("grpc-status", "0")], true);
    out
}

fn write_plan(place: &Place, port: u16, take: &str) {
    let plan = format!(
        r#"
target = "grpc://127.0.0.1:{port}"
[[steps]]
name = "first"
method = "grpc.examples.echo.Echo/UnaryEcho"
message = {{ message = "a" }}
take.token = {take}
[[steps]]
name = "second"
method = "grpc.examples.echo.Echo/UnaryEcho"
message = {{ message = "b" }}
metadata = {{ x-token-bin = "{{{{token}}}}", x-text = "{{{{token}}}}" }}
[load]
clients = 1
calls = 1
"#
    );
    fs::write(place.path("plan.toml"), plan).expect("a writable folder");
}

#[test]
fn taken_binary_metadata_is_sent_on() {
    let (port, received) = serve_tokens("hi");
    let place = Place::new();
    write_plan(&place, port, "{ metadata = \"token-bin\" }");
    let run = place.expect_run(0, &["run", "plan.toml", "-q", "--json"]);
    assert_eq!(run["total"]["ok"], 2, "{run}");
    let mut received = received.lock().expect("metadata").clone();
    received.sort();
    // As text it is the base64 of JSON, which has padding; as metadata it has none.
    let expected = [("x-text", "AQIDBA=="), ("x-token-bin", "AQIDBA")];
    assert_eq!(
        received,
        expected.map(|(a, b)| (a.to_owned(), b.to_owned()))
    );
}

#[test]
fn invalid_binary_metadata_fails_step() {
    let (port, received) = serve_tokens("not base64!");
    let place = Place::new();
    write_plan(&place, port, "\"/message\"");
    let run = place.expect_run(0, &["run", "plan.toml", "-q", "--json"]);
    assert_eq!(errors(&run), [("TAKE_MISSING", 1)], "{run}");
    let details = run["details"].to_string();
    assert!(
        details.contains("metadata x-token-bin: the taken value is not base64"),
        "{details}"
    );
    assert!(received.lock().expect("metadata").is_empty());
}
