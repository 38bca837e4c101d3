//! Tests with frames captured from the Java library (SOFABolt 1.6.10, SOFARPC 5.13.2), from MOSN and from
//! another load tool: each is parsed, its content is decoded completely, and both are encoded again to the
//! same bytes.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_protocols::bolt::frame::DEFAULT_MAX_CONTENT_BYTES;
use plimsoll_protocols::bolt::hessian::{HessianDecoder, HessianEncoder, HessianValue};
use plimsoll_protocols::bolt::sofa::{self, SofaCall};
use plimsoll_protocols::bolt::{
    BoltCommand, BoltFrame, BoltFrameError, BoltFrameKind, FrameLayout, Status, header,
};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/bolt")
}

fn vector(name: &str) -> Vec<u8> {
    fs::read(folder().join(format!("{name}.bin"))).unwrap()
}

fn frame(bytes: &[u8]) -> BoltFrame<'_> {
    let (frame, length) = BoltFrame::parse(bytes, DEFAULT_MAX_CONTENT_BYTES)
        .unwrap()
        .unwrap();
    assert_eq!(length, bytes.len());
    frame
}

/// Decodes a content and encodes it again.
fn reencode_content(content: &[u8]) -> Vec<u8> {
    let (mut decoder, mut encoder) = (HessianDecoder::new(content), HessianEncoder::default());
    while decoder.remaining() > 0 {
        encoder.write_value(&decoder.read_value().unwrap());
    }
    encoder.finish()
}

fn reencode_header(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for pair in header::pairs(bytes) {
        let (key, value) = pair.unwrap();
        header::write(&mut out, key, value);
    }
    out
}

#[test]
fn every_vector_round_trips() {
    let mut seen = 0;
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let bytes = fs::read(&path).unwrap();
        seen += 1;
        if name.starts_with("sofaload-content") {
            assert_eq!(reencode_content(&bytes), bytes, "{name}");
            continue;
        }
        let frame = frame(&bytes);
        assert_eq!(reencode_header(frame.header), frame.header, "{name}");
        assert_eq!(reencode_content(frame.content), frame.content, "{name}");
        let mut again = Vec::new();
        frame.write(&mut again);
        assert_eq!(again, bytes, "{name}");
        for cut in 0..bytes.len() {
            assert_eq!(
                BoltFrame::parse(&bytes[..cut], DEFAULT_MAX_CONTENT_BYTES),
                Ok(None),
                "{name} cut at {cut}"
            );
        }
    }
    assert_eq!(seen, 26, "vectors in {}", folder().display());
}

#[test]
fn layouts_are_recognised_from_frame_bytes() {
    for (name, form, crc) in [
        ("v1-request-string-hello", FrameLayout::V1, false),
        (
            "v2ver2-request-string-hello-crc",
            FrameLayout::V2 {
                revision: 2,
                switches: 1,
            },
            true,
        ),
        (
            "v2ver2-request-string-hello-switch0",
            FrameLayout::V2 {
                revision: 2,
                switches: 0,
            },
            false,
        ),
        (
            "v2ver1-request-string-hello-switch1-nocrc",
            FrameLayout::V2 {
                revision: 1,
                switches: 1,
            },
            false,
        ),
    ] {
        let bytes = vector(name);
        let frame = frame(&bytes);
        assert_eq!(
            (frame.layout, frame.layout.has_crc()),
            (form, crc),
            "{name}"
        );
        assert_eq!(frame.kind, BoltFrameKind::Request { timeout: 3000 });
        assert_eq!(frame.class, b"java.lang.String");
        assert_eq!(reencode_content(frame.content), b"\x05hello");
    }
}

#[test]
fn wrong_checksum_is_rejected() {
    let mut bytes = vector("v2ver2-response-string-hello-crc");
    *bytes.last_mut().unwrap() ^= 1;
    assert!(matches!(
        BoltFrame::parse(&bytes, DEFAULT_MAX_CONTENT_BYTES),
        Err(BoltFrameError::Crc { .. })
    ));
}

#[test]
fn heartbeats_and_acks_match_java_bytes() {
    for (request, ack, form) in [
        (
            "v1-heartbeat-request-id2",
            "v1-heartbeat-ack-id2",
            FrameLayout::V1,
        ),
        (
            "v2ver2-heartbeat-request-id2-switch0",
            "v2ver2-heartbeat-ack-id2-switch0",
            FrameLayout::V2_CRC,
        ),
    ] {
        let (mut ours, mut acked) = (Vec::new(), Vec::new());
        BoltFrame::heartbeat(form, 2).write(&mut ours);
        BoltFrame::heartbeat_ack(form, 2).write(&mut acked);
        assert_eq!(ours, vector(request));
        assert_eq!(acked, vector(ack));
    }
}

#[test]
fn bare_responses_match_java_and_mosn() {
    for (name, status) in [
        (
            "v1-response-threadpool-busy-0004-empty",
            Status::ServerThreadpoolBusy,
        ),
        ("v1-mosn-hijack-no-healthy-upstream", Status::NoProcessor),
    ] {
        let bytes = vector(name);
        let seen = frame(&bytes);
        assert_eq!(seen.command, BoltCommand::RpcResponse);
        let mut ours = Vec::new();
        BoltFrame::status_response(FrameLayout::V1, seen.id, seen.codec, status).write(&mut ours);
        assert_eq!(ours, bytes, "{name}");
    }
}

#[test]
fn sofarpc_requests_parse_and_match_ours() {
    for (name, service, method) in [
        (
            "v1-sofarpc-request-sayHello-world",
            "peer.HelloService:1.0",
            "sayHello",
        ),
        (
            "v1-sofarpc-request-minimal-handmade",
            "peer.HelloService:1.0",
            "sayHello",
        ),
        (
            "v1-sofaload-request-1426",
            "com.alipay.test.TestService:1.0",
            "echoStr",
        ),
    ] {
        let bytes = vector(name);
        let frame = frame(&bytes);
        assert_eq!(frame.class, sofa::REQUEST_CLASS.as_bytes());
        assert_eq!(
            header::find(frame.header, header::SERVICE_KEY.as_bytes()),
            Ok(Some(service.as_bytes()))
        );
        let call = SofaCall::decode(frame.content).unwrap();
        assert_eq!(
            (call.service.as_str(), call.method.as_str()),
            (service, method)
        );
        assert_eq!(call.signature, ["java.lang.String"]);
        assert_eq!(SofaCall::decode(&call.encode_content()).unwrap(), call);
        let ours = call.encode_header();
        for key in [
            header::SERVICE_KEY,
            header::TARGET_SERVICE_KEY,
            header::METHOD_NAME_KEY,
        ] {
            let theirs = header::find(frame.header, key.as_bytes()).unwrap();
            let ours = header::find(&ours, key.as_bytes()).unwrap();
            assert!(theirs.is_none() || ours == theirs, "{name}: {key}");
        }
    }
    // For the same call, that tool's content equals ours.
    let theirs = vector("sofaload-content-1314");
    assert_eq!(SofaCall::decode(&theirs).unwrap().encode_content(), theirs);
}

#[test]
fn sofarpc_responses_match_java_bytes() {
    let bytes = vector("v1-sofarpc-response-hello-world");
    assert_eq!(
        sofa::encode_success(HessianValue::from("hello world")),
        frame(&bytes).content
    );
}

#[test]
fn failed_responses_include_reason() {
    for (name, needle) in [
        (
            "v1-sofarpc-response-service-missing",
            "RPC cannot find service",
        ),
        (
            "v1-response-server-exception-0002",
            "IllegalStateException: asked to throw",
        ),
        (
            "v1-response-no-user-processor-0002",
            "No user processor found",
        ),
        (
            "v1-sofarpc-response-deserial-exception-0012",
            "DeserializationException",
        ),
    ] {
        let bytes = vector(name);
        let text = sofa::failure_text(frame(&bytes).content).unwrap();
        assert!(text.contains(needle), "{name}: {text}");
    }
}
