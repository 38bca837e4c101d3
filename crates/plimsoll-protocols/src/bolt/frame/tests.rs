use super::*;
use proptest::prelude::*;

fn forms() -> impl Strategy<Value = FrameLayout> {
    prop_oneof![
        Just(FrameLayout::V1),
        (1u8..=2, 0u8..0x80)
            .prop_map(|(revision, switches)| FrameLayout::V2 { revision, switches }),
    ]
}

fn kinds() -> impl Strategy<Value = BoltFrameKind> {
    prop_oneof![
        any::<i32>().prop_map(|timeout| BoltFrameKind::Request { timeout }),
        any::<i32>().prop_map(|timeout| BoltFrameKind::Oneway { timeout }),
        any::<u16>().prop_map(|status| BoltFrameKind::Response { status }),
    ]
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..80)
}

proptest! {
    #[test]
    fn frame_round_trips_only_when_complete(
        (form, kind) in (forms(), kinds()),
        (id, codec) in (any::<u32>(), any::<u8>()),
        (class, header, content) in (bytes(), bytes(), bytes()),
        rest in bytes(),
    ) {
        let frame = BoltFrame {
            layout: form, kind, command: BoltCommand::RpcRequest, command_version: 1, id, codec,
            class: &class, header: &header, content: &content,
        };
        let mut wire = Vec::new();
        frame.write(&mut wire);
        let length = wire.len();
        for cut in 0..length {
            prop_assert_eq!(BoltFrame::parse(&wire[..cut], DEFAULT_MAX_CONTENT_BYTES), Ok(None));
        }
        wire.extend_from_slice(&rest);
        prop_assert_eq!(BoltFrame::parse(&wire, DEFAULT_MAX_CONTENT_BYTES), Ok(Some((frame, length))));
    }

    #[test]
    fn parsed_garbage_writes_back_unchanged(wire in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(Some((frame, length))) = BoltFrame::parse(&wire, DEFAULT_MAX_CONTENT_BYTES) {
            let mut again = Vec::new();
            frame.write(&mut again);
            prop_assert_eq!(&again[..], &wire[..length]);
        }
    }

    #[test]
    fn flipped_bit_fails_checksum(
        content in bytes(), at in 22usize..60, bit in 0u8..8,
    ) {
        let mut wire = Vec::new();
        let frame = BoltFrame { content: &content, ..BoltFrame::heartbeat(FrameLayout::V2_CRC, 7) };
        BoltFrame { layout: FrameLayout::V2_CRC, ..frame }.write(&mut wire);
        let at = at.max(24);
        prop_assume!(at < wire.len());
        wire[at] ^= 1 << bit;
        let parsed = BoltFrame::parse(&wire, DEFAULT_MAX_CONTENT_BYTES);
        prop_assert!(matches!(parsed, Err(BoltFrameError::Crc { .. })), "{:?}", parsed);
    }
}

#[test]
fn invalid_bytes_are_rejected_early() {
    fn parse(bytes: &[u8]) -> Result<Option<(BoltFrame<'_>, usize)>, BoltFrameError> {
        BoltFrame::parse(bytes, 1000)
    }
    assert_eq!(parse(b"H"), Err(BoltFrameError::Protocol(b'H')));
    assert_eq!(parse(&[2, 3]), Err(BoltFrameError::Revision(3)));
    assert_eq!(parse(&[1, 9]), Err(BoltFrameError::Type(9)));
    assert_eq!(parse(&[2, 1, 7]), Err(BoltFrameError::Type(7)));

    let mut wire = Vec::new();
    BoltFrame::heartbeat(FrameLayout::V1, 1).write(&mut wire);
    wire[3] = 9;
    assert_eq!(parse(&wire), Err(BoltFrameError::Command(9)));
    wire[3] = 0;
    wire[18..22].copy_from_slice(&0x7fff_ffffu32.to_be_bytes());
    assert_eq!(
        parse(&wire),
        Err(BoltFrameError::ContentTooLong {
            length: 0x7fff_ffff,
            limit: 1000
        })
    );
    wire[18..22].copy_from_slice(&(-1i32).to_be_bytes());
    assert_eq!(parse(&wire), Err(BoltFrameError::NegativeContent(-1)));

    let mut wire = Vec::new();
    BoltFrame::heartbeat(FrameLayout::V2, 1).write(&mut wire);
    wire[11] = 0x80;
    assert_eq!(parse(&wire), Err(BoltFrameError::Switches(0x80)));
}
