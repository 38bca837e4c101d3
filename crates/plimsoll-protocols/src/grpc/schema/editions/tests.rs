use std::fs;

use crate::grpc::schema::Schema;
use crate::grpc::{FieldShape, MessageShapes};

fn shapes(schema: &Schema) -> MessageShapes {
    let method = schema.method("a.S/Call").unwrap();
    schema.answer_shapes(&method)
}

/// Encodes a length-delimited field with this number.
fn text(number: u8, bytes: &[u8]) -> Vec<u8> {
    let (key, length) = (u16::from(number) << 3 | 2, bytes.len());
    assert!(length < 0x80);
    [&varint(key)[..], &[length as u8], bytes].concat()
}

fn number(field: u8, value: u16) -> Vec<u8> {
    [varint(u16::from(field) << 3), varint(value)].concat()
}

fn varint(value: u16) -> Vec<u8> {
    match value {
        0..0x80 => vec![value as u8],
        _ => vec![value as u8 | 0x80, (value >> 7) as u8],
    }
}

/// Protobuf's number for `NONE` differs from that of the library's pool. A response is valid even if a string
/// with this feature is not UTF-8.
#[test]
fn utf8_validation_feature_is_honoured() {
    let dir = tempfile::tempdir().unwrap();
    for feature in [
        "[features.utf8_validation = NONE]",
        "[features = { utf8_validation: NONE }]",
    ] {
        let source = format!(
            "edition = \"2023\"; package a; service S {{ rpc Call(M) returns (M); }} \
             message M {{ string any = 1 {feature}; string text = 2; }}"
        );
        fs::write(dir.path().join("a.proto"), source).unwrap();
        let schema = Schema::from_protos(&[dir.path().join("a.proto")], &[]).unwrap();
        assert_eq!(
            shapes(&schema).shapes[0].fields,
            [(2, FieldShape::Text)],
            "{feature}"
        );
    }

    let string = |name: &[u8], place: u16, options: &[u8]| {
        let field = [text(1, name), number(3, place), number(4, 1), number(5, 9)];
        text(2, &[field.concat(), text(8, options)].concat())
    };
    let features = text(21, &number(4, 3));
    let message = [
        text(1, b"M"),
        string(b"any", 1, &features),
        string(b"text", 2, b""),
    ];
    let method = [text(1, b"Call"), text(2, b".a.M"), text(3, b".a.M")];
    let service = [text(1, b"S"), text(2, &method.concat())];
    let file = [
        text(1, b"a.proto"),
        text(2, b"a"),
        text(4, &message.concat()),
        text(6, &service.concat()),
        text(12, b"editions"),
        number(14, 1000),
    ];
    let path = dir.path().join("a.binpb");
    fs::write(&path, text(1, &file.concat())).unwrap();
    let schema = Schema::from_descriptor_set(&path).unwrap();
    assert_eq!(shapes(&schema).shapes[0].fields, [(2, FieldShape::Text)]);
}

#[test]
fn deeply_nested_messages_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep.proto");
    let read = |head: &str, opens: &str, inner: &str, depth: usize| {
        let (open, close) = (opens.repeat(depth), "}".repeat(depth));
        fs::write(&path, format!("{head};\n{open}{inner}{close}")).unwrap();
        Schema::from_protos(std::slice::from_ref(&path), &[]).map(drop)
    };
    for head in ["edition = \"2023\"", "syntax = \"proto3\""] {
        for depth in [50, 98, 150, 20_000] {
            let read = read(head, "message A { ", "int32 a = 1;", depth);
            if depth > 98 {
                let refused = read.unwrap_err().to_string();
                assert!(refused.contains("deep.proto"), "{refused}");
            }
        }
    }
    // The depth is also limited in malformed files, before the compiler reads them.
    for broken in [
        "syntax = \"proto3\"; option a = \"",
        "syntax = \"proto3\"; option a = '\\",
        "syntax = \"proto3\"; # don't",
        "syntax = \"proto3\"; /* /* */",
        "edition = \"2023\"; # don't",
    ] {
        let refused = read(broken, "message A { ", "", 20_000).unwrap_err();
        let refused = refused.to_string();
        assert!(refused.contains("nested more than"), "{broken}: {refused}");
    }
    // Nested values of options count towards the depth.
    let option = "syntax = \"proto3\"; option (a) = {";
    let refused = read(option, "a {", "", 20_000).unwrap_err().to_string();
    assert!(
        refused.contains("deep.proto:2:300: nested more than 100 deep"),
        "{refused}"
    );
}
