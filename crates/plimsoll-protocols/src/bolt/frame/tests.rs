use super::*;
use proptest::prelude::*;

fn forms() -> impl Strategy<Value = Form> {
    prop_oneof![
        Just(Form::V1),
        (1u8..=2, 0u8..0x80).prop_map(|(revision, switches)| Form::V2 { revision, switches }),
    ]
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        any::<i32>().prop_map(|timeout| Kind::Request { timeout }),
        any::<i32>().prop_map(|timeout| Kind::Oneway { timeout }),
        any::<u16>().prop_map(|status| Kind::Response { status }),
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
        let frame = Frame {
            form, kind, command: Command::RpcRequest, command_version: 1, id, codec,
            class: &class, header: &header, content: &content,
        };
        let mut wire = Vec::new();
        frame.write(&mut wire);
        let length = wire.len();
        for cut in 0..length {
            prop_assert_eq!(Frame::parse(&wire[..cut], MAX_CONTENT), Ok(None));
        }
        wire.extend_from_slice(&rest);
        prop_assert_eq!(Frame::parse(&wire, MAX_CONTENT), Ok(Some((frame, length))));
    }

    #[test]
    fn parsed_garbage_writes_back_unchanged(wire in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(Some((frame, length))) = Frame::parse(&wire, MAX_CONTENT) {
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
        let frame = Frame { content: &content, ..Frame::heartbeat(Form::V2_CRC, 7) };
        Frame { form: Form::V2_CRC, ..frame }.write(&mut wire);
        let at = at.max(24);
        prop_assume!(at < wire.len());
        wire[at] ^= 1 << bit;
        let parsed = Frame::parse(&wire, MAX_CONTENT);
        prop_assert!(matches!(parsed, Err(FrameError::Crc { .. })), "{:?}", parsed);
    }
}

#[test]
fn invalid_bytes_are_rejected_early() {
    fn parse(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, FrameError> {
        Frame::parse(bytes, 1000)
    }
    assert_eq!(parse(b"H"), Err(FrameError::Protocol(b'H')));
    assert_eq!(parse(&[2, 3]), Err(FrameError::Revision(3)));
    assert_eq!(parse(&[1, 9]), Err(FrameError::Type(9)));
    assert_eq!(parse(&[2, 1, 7]), Err(FrameError::Type(7)));

    let mut wire = Vec::new();
    Frame::heartbeat(Form::V1, 1).write(&mut wire);
    wire[3] = 9;
    assert_eq!(parse(&wire), Err(FrameError::Command(9)));
    wire[3] = 0;
    wire[18..22].copy_from_slice(&0x7fff_ffffu32.to_be_bytes());
    assert_eq!(
        parse(&wire),
        Err(FrameError::ContentTooLong {
            length: 0x7fff_ffff,
            limit: 1000
        })
    );
    wire[18..22].copy_from_slice(&(-1i32).to_be_bytes());
    assert_eq!(parse(&wire), Err(FrameError::NegativeContent(-1)));

    let mut wire = Vec::new();
    Frame::heartbeat(Form::V2, 1).write(&mut wire);
    wire[11] = 0x80;
    assert_eq!(parse(&wire), Err(FrameError::Switches(0x80)));
}
