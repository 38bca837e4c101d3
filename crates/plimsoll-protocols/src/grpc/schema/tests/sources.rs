//! Tests of where descriptors come from: several import paths, sets that lack files, and files that supplement
//! a server's reflection.

use super::*;

/// A file on disk defines a type once, whatever names it is imported by.
#[test]
fn overlapping_import_paths_define_types_once() {
    let protos = Protos::new(&[
        (
            "a.proto",
            "syntax = \"proto3\"; package a; import \"sub/b.proto\"; import \"sub/c.proto\"; message A { b.B b = 1; c.C c = 2; }",
        ),
        (
            "sub/b.proto",
            "syntax = \"proto3\"; package b; import \"c.proto\"; message B { c.C c = 1; } service S { rpc Do(B) returns (B); }",
        ),
        (
            "sub/c.proto",
            "edition = \"2023\"; package c; message C { string text = 1; }",
        ),
    ]);
    let (outer, inner) = (protos.path(""), protos.path("sub"));
    let files = [protos.path("sub/b.proto"), protos.path("a.proto")];
    for paths in [
        &[][..],
        &[outer.clone(), inner.clone()],
        &[inner.clone(), outer.clone()],
    ] {
        for files in [files.clone(), [files[1].clone(), files[0].clone()]] {
            let schema = Schema::from_protos(&files, paths).unwrap();
            assert!(schema.has_service("b.S"));
            let described = schema.describe("a.A").unwrap();
            assert!(described.contains("message c.C {"), "{described}");
        }
    }
}

#[test]
fn byte_order_mark_is_skipped() {
    for first in ["syntax = \"proto3\"", "edition = \"2023\""] {
        let text = format!(
            "\u{feff}{first}; package q; message R {{ string a = 1; }} service S {{ rpc Do(R) returns (R); }}"
        );
        let protos = Protos::new(&[("s.proto", &text)]);
        assert!(protos.schema("s.proto").unwrap().has_service("q.S"));
        let protos = Protos::new(&[("s.proto", &text.replace("string a", "strin a"))]);
        let error = protos.schema("s.proto").unwrap_err().to_string();
        assert!(error.contains("s.proto:1:"), "{error}");
    }
}

/// Writes a descriptor set with some files of a schema.
fn set_of(schema: &Schema, names: &[&str]) -> tempfile::NamedTempFile {
    let mut set = Vec::new();
    for name in names {
        let file = schema.pool.get_file_by_name(name).unwrap();
        let file = file.file_descriptor_proto().encode_to_vec();
        prost_reflect::prost::encoding::bytes::encode(1, &file, &mut set);
    }
    let made = tempfile::NamedTempFile::new().unwrap();
    fs::write(made.path(), set).unwrap();
    made
}

#[test]
fn descriptor_set_may_omit_protobuf_files() {
    let protos = Protos::new(&[
        (
            "q.proto",
            "syntax = \"proto3\"; package q; import \"google/protobuf/timestamp.proto\"; import \"r.proto\"; message R { google.protobuf.Timestamp t = 1; r.R r = 2; } service S { rpc Do(R) returns (R); }",
        ),
        ("r.proto", "syntax = \"proto3\"; package r; message R {}"),
    ]);
    let schema = protos.schema("q.proto").unwrap();
    let whole = set_of(&schema, &["q.proto", "r.proto"]);
    let read = Schema::from_descriptor_set(whole.path()).unwrap();
    let method = read.method("q.S/Do").unwrap();
    assert!(
        read.encode(&method, r#"{"t": "2026-01-01T00:00:00Z"}"#)
            .is_ok()
    );
    let half = set_of(&schema, &["q.proto"]);
    let error = Schema::from_descriptor_set(half.path())
        .unwrap_err()
        .to_string();
    assert!(error.contains("r.proto: it is missing"), "{error}");
    assert!(
        error.ends_with("make the set with `protoc --include_imports`"),
        "{error}"
    );
}

#[cfg(feature = "targets")]
#[test]
fn schema_is_supplemented_by_files() {
    let server = Protos::new(&[(
        "a.proto",
        "syntax = \"proto3\"; package a; import \"google/protobuf/any.proto\"; message Q { google.protobuf.Any payload = 1; } service S { rpc Do(Q) returns (Q); }",
    )]);
    let server = server.schema("a.proto").unwrap();
    let files = Protos::new(&[
        (
            "b.proto",
            "edition = \"2023\"; package b; import \"copy/a.proto\"; enum E { ONE = 1; option features.enum_type = CLOSED; } message Y { string sku = 1; E e = 2; }",
        ),
        (
            "copy/a.proto",
            "syntax = \"proto3\"; package a; import \"google/protobuf/any.proto\"; message Q { google.protobuf.Any payload = 1; } service S { rpc Do(Q) returns (Q); }",
        ),
    ]);
    let both = server
        .supplement_with(&files.schema("b.proto").unwrap())
        .unwrap();
    let method = both.method("a.S/Do").unwrap();
    let carried = |rest: &str| {
        let json = format!(r#"{{"payload": {{"@type": "type.googleapis.com/b.Y", {rest}}}}}"#);
        both.encode(&method, &json)
    };
    assert!(carried(r#""sku": "x""#).is_ok());
    assert!(carried(r#""ski": "x""#).is_err());
    assert!(both.unsupported.closed_enums.contains("b.E"));
}
