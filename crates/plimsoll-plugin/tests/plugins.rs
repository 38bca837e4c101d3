//! Tests of loaded plugins: both examples, invalid ones, and one that returns nonsense.

#![allow(clippy::unwrap_used, reason = "tests")]

mod built;

use std::ffi::CStr;
use std::fs;
use std::path::Path;
use std::process::Command;

use plimsoll_plugin::guest::{self, FrameOutput, MatchResult, Plugin};
use plimsoll_plugin::{
    Codec, CodecFault, DEFAULT_MAX_FRAME_BYTES, DecodeResult, Frame, FrameKind, Match,
    NewFrameKind, PartialFrame, SenderRole,
};
use proptest::prelude::*;

fn load(path: &Path) -> Codec {
    Codec::load(path).unwrap_or_else(|e| panic!("{e}"))
}

fn made(codec: &Codec, what: NewFrameKind, id: u64, payload: &[u8]) -> Vec<u8> {
    let mut wire = Vec::new();
    assert_eq!(codec.make_frame(what, id, 0, payload, &mut wire), Ok(true));
    wire
}

fn frame(codec: &Codec, wire: &[u8], sender: SenderRole) -> Frame {
    match codec.decode(wire, sender, DEFAULT_MAX_FRAME_BYTES) {
        Ok(DecodeResult::Frame(frame)) => frame,
        other => panic!("{other:?} for {}", wire.escape_ascii()),
    }
}

/// Checks everything that both examples must do.
fn assert_speaks_x_example(codec: &Codec) {
    assert_eq!(codec.name(), "x_example");
    for (bytes, matches) in [
        (&b""[..], Match::More),
        (b"x", Match::Yes),
        (b"x\x01\0", Match::Yes),
        (b"GET /", Match::No),
    ] {
        assert_eq!(codec.matches(bytes, SenderRole::Client), Ok(matches));
    }

    let hello = b"x\x01\0\0\0\0\x07\0\0\0\x0bHello World";
    assert_eq!(made(codec, NewFrameKind::Request, 7, b"Hello World"), hello);
    let seen = frame(codec, hello, SenderRole::Client);
    assert_eq!((seen.length, seen.id), (hello.len(), 7));
    assert_eq!(seen.kind, FrameKind::Request { timeout: None });
    assert_eq!(&hello[seen.payload], b"Hello World");

    // Of an incomplete frame, only the number of missing bytes is returned.
    for end in 0..hello.len() {
        let more = codec.decode(&hello[..end], SenderRole::Client, DEFAULT_MAX_FRAME_BYTES);
        let needed = match end {
            0..3 => None,
            3..11 => Some(11),
            _ => Some(hello.len()),
        };
        assert_eq!(more, Ok(DecodeResult::More(needed)), "{end} bytes");
    }

    // Several frames follow each other, and each is found after the previous one.
    let mut wire = made(codec, NewFrameKind::Response, 1, b"");
    wire.extend(made(
        codec,
        NewFrameKind::Response,
        u32::MAX.into(),
        b"second",
    ));
    wire.extend(made(codec, NewFrameKind::HeartbeatAck, 3, b""));
    let (mut at, mut seen) = (0, Vec::new());
    while at < wire.len() {
        let next = frame(codec, &wire[at..], SenderRole::Server);
        seen.push((next.id, next.kind, wire[at..][next.payload].to_vec()));
        at += next.length;
    }
    assert_eq!(
        seen,
        [
            (1, FrameKind::Response { status: 0 }, vec![]),
            (
                u32::MAX.into(),
                FrameKind::Response { status: 0 },
                b"second".to_vec()
            ),
            (3, FrameKind::HeartbeatAck, vec![]),
        ]
    );

    // Only the id changes, in both directions.
    let mut renumbered = b"before".to_vec();
    codec
        .encode(hello, 0, 0x0102_0304, &mut renumbered)
        .unwrap();
    assert_eq!(
        renumbered,
        b"beforex\x01\0\x01\x02\x03\x04\0\0\0\x0bHello World"
    );
    let answer = made(codec, NewFrameKind::Response, 5, &vec![b'a'; 100_000]);
    let mut renumbered = Vec::new();
    codec.encode(&answer, 0, 9, &mut renumbered).unwrap();
    assert_eq!(frame(codec, &renumbered, SenderRole::Server).id, 9);
    assert_eq!(renumbered[7..], answer[7..]);

    let beat = made(codec, NewFrameKind::Heartbeat, 11, b"");
    let seen = frame(codec, &beat, SenderRole::Client);
    assert_eq!((seen.id, seen.kind), (11, FrameKind::Heartbeat));
    let goaway = b"x\x02\0\0\0\0\x01\0\0\0\0";
    assert_eq!(
        frame(codec, goaway, SenderRole::Server).kind,
        FrameKind::GoAway
    );
    for (what, status) in [
        (NewFrameKind::Busy, 2),
        (NewFrameKind::Unreachable, 3),
        (NewFrameKind::Timeout, 4),
        (NewFrameKind::Closed, 5),
    ] {
        let refused = made(codec, what, 12, b"");
        let seen = frame(codec, &refused, SenderRole::Server);
        assert_eq!((seen.id, seen.kind), (12, FrameKind::Response { status }));
    }

    for wrong in [
        &b"y\x01\0\0\0\0\x07\0\0\0\0"[..],
        b"x\x03\0\0\0\0\x07\0\0\0\0",
        b"x\x01\x02\0\0\0\x07\0\0\0\0",
        b"x\x01\x01\0\0\0\x07\0\0\0\0\0\0",
    ] {
        let seen = codec.decode(wrong, SenderRole::Client, DEFAULT_MAX_FRAME_BYTES);
        assert_eq!(seen, Err(CodecFault::Malformed), "{}", wrong.escape_ascii());
    }
    let huge = b"x\x01\0\0\0\0\x07\xff\xff\xff\xff";
    let seen = codec.decode(huge, SenderRole::Client, DEFAULT_MAX_FRAME_BYTES);
    let length = u64::from(u32::MAX) + 11;
    let limit = DEFAULT_MAX_FRAME_BYTES;
    let head = Some(PartialFrame {
        id: 7,
        note: 0,
        kind: FrameKind::Request { timeout: None },
    });
    let too_long = CodecFault::TooLong {
        length,
        limit,
        head,
    };
    assert_eq!(seen, Err(too_long));
    // The id does not fit into the protocol's field.
    let mut out = Vec::new();
    let wide = codec.encode(hello, 0, 1 << 32, &mut out);
    assert_eq!((wide, out.len()), (Err(CodecFault::Malformed), 0));
}

#[test]
fn c_example_speaks_its_protocol() {
    let folder = tempfile::tempdir().unwrap();
    assert_speaks_x_example(&load(&built::build_c_example(folder.path())));
}

#[test]
fn rust_example_speaks_its_protocol() {
    assert_speaks_x_example(&load(&built::built_rust_example()));
}

#[test]
fn documented_plugin_compiles_and_works() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/plugin.md");
    let page = fs::read_to_string(page).unwrap();
    let source = page.split("```c\n").nth(1).unwrap();
    let source = source.split("```").next().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ten_minutes.c");
    fs::write(&path, source).unwrap();
    let made_of = built::build_c(&path, folder.path(), "ten_minutes.so", &[]);
    let codec = load(&made_of);
    assert_eq!(codec.name(), "ten_minutes");
    let request = made(&codec, NewFrameKind::Request, 3, b"hello");
    assert_eq!(request, b"\0\0\0\0\x03\0\0\0\x05hello");
    for end in 0..request.len() {
        let more = codec.decode(&request[..end], SenderRole::Client, DEFAULT_MAX_FRAME_BYTES);
        assert!(
            matches!(more, Ok(DecodeResult::More(_))),
            "{end} bytes: {more:?}"
        );
    }
    let mut wire = Vec::new();
    codec.encode(&request, 0, 70_000, &mut wire).unwrap();
    wire.extend(made(&codec, NewFrameKind::HeartbeatAck, 4, b""));
    let first = frame(&codec, &wire, SenderRole::Client);
    assert_eq!(
        (first.id, first.kind),
        (70_000, FrameKind::Request { timeout: None })
    );
    let second = frame(&codec, &wire[first.length..], SenderRole::Server);
    assert_eq!((second.id, second.kind), (4, FrameKind::HeartbeatAck));
    assert_eq!(
        codec.make_frame(NewFrameKind::Busy, 1, 0, b"", &mut wire),
        Ok(false)
    );
    assert_eq!(codec.matches(b"GET /", SenderRole::Client), Ok(Match::No));
}

#[test]
fn header_compiles_as_c_and_cpp() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/plimsoll_codec.h");
    for (compiler, language) in [("cc", "c"), ("c++", "c++")] {
        let output = Command::new(compiler)
            .args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-pedantic"])
            .args(["-x", language])
            .arg(&header)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{compiler}: {said}");
    }
}

#[test]
fn invalid_plugins_are_rejected_with_reason() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let text = folder.join("text.so");
    fs::write(&text, "not a library").unwrap();
    let made = |name, flags: &[&str]| built::nonsense(folder, name, flags);
    for (path, needle) in [
        (folder.join("absent.so"), "No such file"),
        (folder.to_owned(), "not a file"),
        (text, "can't be loaded: file too short"),
        (
            made("symbol.so", &["-DSYMBOL=another"]),
            "exports no function `plimsoll_codec`",
        ),
        (
            made("unresolved.so", &["-DMISSING"]),
            "undefined symbol: nowhere_to_be_found",
        ),
        (made("refuse.so", &["-DREFUSE"]), "returned no table"),
        (
            made("version.so", &["-DABI=2"]),
            "speaks version 2 of the interface, and this program version 1",
        ),
        (
            made("size.so", &["-DSIZE=8"]),
            "its table has 8 bytes, expected 48",
        ),
        (made("function.so", &["-DENCODE=NULL"]), "lacks `encode`"),
        (made("name.so", &["-DNAME=NULL"]), "its name is missing"),
        (made("empty.so", &["-DNAME=\"\""]), "its name is empty"),
        (
            made("latin.so", &["-DNAME=\"\\xe9\""]),
            "its name is not UTF-8",
        ),
    ] {
        let error = Codec::load(&path).unwrap_err().to_string();
        assert!(error.contains(needle), "{error}");
        let name = path.display().to_string();
        assert!(error.contains(&name), "{error} names {name}");
    }
}

/// A plugin that panics in every function.
struct PanickingPlugin;

impl Plugin for PanickingPlugin {
    const NAME: &'static CStr = c"panics";

    fn matches(_: &[u8], _: u32) -> MatchResult {
        panic!("match")
    }

    fn decode(bytes: &[u8], _: u32) -> guest::Decoded {
        panic!("decode of {}", bytes[bytes.len()])
    }

    fn encode(_: &[u8], _: u64, _: u64, out: &mut FrameOutput<'_>) -> bool {
        out.put(b"half of it");
        panic!("encode")
    }

    fn make_frame(_: u32, _: u64, _: u64, _: &[u8], _: &mut FrameOutput<'_>) -> bool {
        panic!("make")
    }
}

#[test]
fn plugin_panic_becomes_fault() {
    let codec = Codec::built_in::<PanickingPlugin>().unwrap();
    let mut out = b"before".to_vec();
    assert_eq!(
        codec.matches(b"x", SenderRole::Client),
        Err(CodecFault::Failed)
    );
    assert_eq!(
        codec.decode(b"x", SenderRole::Client, 100),
        Err(CodecFault::Failed)
    );
    assert_eq!(codec.encode(b"x", 0, 1, &mut out), Err(CodecFault::Failed));
    assert_eq!(
        codec.make_frame(NewFrameKind::Busy, 1, 0, b"", &mut out),
        Err(CodecFault::Failed)
    );
    assert_eq!(out, b"before");
    assert!(CodecFault::Failed.is_plugin_fault());
}

#[test]
fn nonsensical_plugin_results_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let codec = load(&built::nonsense(folder.path(), "nonsense.so", &[]));
    let result = prop_oneof![4 => Just(0i32), 2 => Just(1), 2 => Just(3), 1 => any::<i32>()];
    let number = prop_oneof![
        0u64..200,
        any::<u64>(),
        (0u64..9).prop_map(|n| u64::MAX - n),
        (0u64..9).prop_map(|n| (1 << 63) - n),
        // A negative C int has this value.
        (1i64..9).prop_map(|n| -n as u64),
        Just(DEFAULT_MAX_FRAME_BYTES as u64 + 1),
    ];
    let small = prop_oneof![0u32..5, any::<u32>()];
    let answers = (
        result,
        proptest::collection::vec(number, 5),
        proptest::collection::vec(small, 4),
        0usize..100,
    );
    proptest!(|((result, numbers, small, more) in answers)| {
        let mut wire = result.to_ne_bytes().to_vec();
        wire.extend(numbers.iter().flat_map(|n| n.to_ne_bytes()));
        wire.extend(small.iter().flat_map(|n| n.to_ne_bytes()));
        wire.resize(wire.len() + more, 0);
        let _ = codec.matches(&wire[..4], SenderRole::Server);
        match codec.decode(&wire, SenderRole::Server, DEFAULT_MAX_FRAME_BYTES) {
            Ok(DecodeResult::Frame(frame)) => {
                prop_assert!(frame.length > 0 && frame.length <= wire.len());
                prop_assert!(wire[..frame.length].get(frame.payload).is_some());
            }
            Ok(DecodeResult::More(needed)) => {
                prop_assert!(needed.is_none_or(|n| n > wire.len() && n <= DEFAULT_MAX_FRAME_BYTES));
            }
            Err(_) => {}
        }
        let mut out = b"before".to_vec();
        let claimed = usize::try_from(numbers[0]).unwrap_or(usize::MAX);
        match codec.encode(&wire, 0, 1, &mut out) {
            Ok(()) => prop_assert_eq!(out.len(), 6 + claimed),
            Err(_) => prop_assert_eq!(out.len(), 6),
        }
        let had = out.len();
        match codec.make_frame(NewFrameKind::Busy, 1, 0, &wire, &mut out) {
            Ok(true) => prop_assert_eq!(out.len(), had + claimed),
            Ok(false) | Err(_) => prop_assert_eq!(out.len(), had),
        }
        prop_assert!(out.starts_with(b"before"));
    });
}
