use super::super::call::MessageShape;
use super::*;

/// Returns the layout of a message with a string, a nested message of its own type, and the same as a group.
fn shapes() -> MessageShapes {
    MessageShapes {
        expected: None,
        name: "a.M".to_owned(),
        shapes: vec![MessageShape {
            fields: vec![
                (1, FieldShape::Text),
                (2, FieldShape::Message(0)),
                (3, FieldShape::Message(0)),
            ],
        }],
    }
}

fn walked(bytes: &[u8], piece: usize) -> Result<(), &'static str> {
    let mut walk = WireValidator::default();
    for piece in bytes.chunks(piece) {
        walk.validate_bytes(&shapes(), piece)?;
    }
    walk.finish()
}

#[test]
fn messages_validate_in_any_split() {
    for (bytes, is_good) in [
        (&b""[..], true),
        (b"\x0a\x03abc", true),
        (b"\x0a\x04a\xc3\xa9b", true),
        (b"\x0a\x02a\xc3", false),
        (b"\x0a\x02\xff\xfe", false),
        // A `bytes` field need not be UTF-8.
        (b"\x22\x02\xff\xfe", true),
        (b"\x12\x05\x0a\x03abc", true),
        (b"\x12\x05\x0a\x02\xff\xfe", false),
        (b"\x12\x04\x0a\x03abc", false),
        (b"\x12\x06\x0a\x03abc", false),
        (b"\x12\x00\x12\x02\x12\x00", true),
        (b"\x12\x02\x08\x80\x01", false),
        // A number in place of a string is an unknown field.
        (b"\x08\x01", true),
        (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", true),
        (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", false),
        (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", false),
        (b"\x08", false),
        (b"\x08\x80", false),
        (b"\x09\0\0\0\0\0\0\0\0", true),
        (b"\x09\0\0\0\0\0\0\0", false),
        (b"\x0d\0\0\0\0", true),
        (b"\x0d\0\0\0", false),
        (b"\x00\x01", false),
        (b"\x0e", false),
        (b"\x0f", false),
        (b"\x1b\x0a\x01a\x1c", true),
        (b"\x1b\x0a\x01\xff\x1c", false),
        (b"\x1b\x23\x24\x1c", true),
        (b"\x1b\x24", false),
        (b"\x1b", false),
        (b"\x1c", false),
        (b"\x12\x01\x1b\x1c", false),
        (b"\x0a\xff\xff\xff\xff\x0f", false),
        (b"not protobuf at all", false),
    ] {
        for piece in 1..=bytes.len().max(1) {
            let said = walked(bytes, piece);
            assert_eq!(said.is_ok(), is_good, "{bytes:x?} by {piece}: {said:?}");
        }
    }
}

#[test]
fn deep_nesting_takes_bounded_memory() {
    let deep: Vec<u8> = std::iter::repeat_n(0x1b, 100_000).collect();
    assert!(walked(&deep, 7).is_err());
    // Each message fills the rest of the one around it.
    let mut nested = Vec::new();
    for _ in 0..500 {
        let mut around = vec![0x12];
        let mut length = nested.len();
        while length >= 0x80 {
            around.push(length as u8 | 0x80);
            length >>= 7;
        }
        around.push(length as u8);
        around.append(&mut nested);
        nested = around;
    }
    assert_eq!(walked(&nested, 3), Ok(()));
}

#[test]
fn known_messages_skip_validation() {
    let shapes = shapes();
    let mut decodable = AnswerValidator::default();
    for (message, is_good) in [
        (&b"\x0a\x01a"[..], true),
        (b"\x0a\x01a", true),
        (b"\x0a", false),
    ] {
        assert_eq!(decodable.is_valid(Some(&shapes), message), is_good);
        let data = [&[0, 0, 0, 0, message.len() as u8], message].concat();
        assert_eq!(
            decodable.begin_validation(&shapes, 1, &data).is_ok(),
            is_good
        );
        // The message arrives in two frames, followed by another message.
        let (first, second) = data.split_at(6);
        let second = [second, &data].concat();
        let split = decodable.begin_validation(&shapes, 3, first);
        let split = split.and_then(|()| decodable.continue_validation(&shapes, 3, &second));
        assert_eq!(split.is_ok(), is_good);
        assert!(decodable.validators.as_ref().unwrap().split.is_empty());
    }
    // Without a known layout, any bytes are accepted.
    assert!(AnswerValidator::default().is_valid(None, b"\x0a"));
}
