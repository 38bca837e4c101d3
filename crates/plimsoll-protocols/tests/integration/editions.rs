//! Compares messages of protobuf editions with protobuf's own runtime for Python: the same JSON must become
//! the same bytes, for all features of a file and all origins of descriptors. `make setup` installs what
//! `tests/peers/editions.py` needs.
#![cfg(feature = "schema")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use plimsoll_protocols::grpc::schema::Schema;
use serde_json::{Value, json};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The default of each feature of a file, and its other value.
const FEATURES: [(&str, &str); 4] = [
    ("field_presence", "IMPLICIT"),
    ("enum_type", "CLOSED"),
    ("repeated_field_encoding", "EXPANDED"),
    ("message_encoding", "DELIMITED"),
];

/// Returns a file with every kind of field, and with every feature set on some fields. The bits of `set`
/// select which of [`FEATURES`] are set on the whole file.
fn file(edition: &str, set: u32) -> String {
    let mut text = format!("// A file.\nedition = \"{edition}\"; package e{edition}.f{set};\n");
    text.push_str("import \"google/protobuf/timestamp.proto\";\n");
    if edition == "2024" {
        text.push_str("import option \"google/protobuf/descriptor.proto\";\n");
    }
    for (i, (feature, value)) in FEATURES.iter().enumerate() {
        if set >> i & 1 == 1 {
            writeln!(text, "option features.{feature} = {value};").unwrap();
        }
    }
    if edition == "2024" {
        text.push_str("option features.default_symbol_visibility = EXPORT_ALL;\n");
        text.push_str("local enum Hidden { HIDDEN_UNKNOWN = 0; }\n");
    }
    text.push_str(
        r#"
service S { rpc Call(M) returns (M); }
enum Shut { option features.enum_type = CLOSED; SHUT_ONE = 1; SHUT_TWO = 2; SHUT_NEG = -1; }
enum Wide { option features.enum_type = OPEN; WIDE_ZERO = 0; WIDE_ONE = 1; }
enum Asis { ASIS_ZERO = 0; ASIS_ONE = 1; }
message M {
  // These names are keywords of the language.
  reserved foo, bar;
  reserved 900 to 950;
  extensions 1000 to max;
  enum Inner { option allow_alias = true; INNER_ZERO = 0; INNER_ONE = 1; INNER_UNO = 1; }
  message Rec { int32 a = 1; Rec rec = 2; repeated Rec recs = 3; string default = 4; }
  int32 i32 = 1;
  int64 i64 = 2 [json_name = "long"];
  uint32 u32 = 3;
  uint64 u64 = 4;
  sint32 s32 = 5;
  sint64 s64 = 6;
  fixed32 f32 = 7;
  sfixed64 sf64 = 8;
  float fl = 9;
  double db = 10;
  bool bo = 11;
  string st = 12;
  bytes by = 13;
  Shut shut = 14 [features.field_presence = EXPLICIT, default = SHUT_TWO];
  Wide wide = 15;
  Inner inner = 16 [features.field_presence = EXPLICIT];
  Rec rec = 17;
  Rec whole = 18 [features.message_encoding = LENGTH_PREFIXED];
  Rec group = 19 [features.message_encoding = DELIMITED];
  repeated int32 ri = 20;
  repeated sint64 rs = 21 [features.repeated_field_encoding = PACKED];
  repeated double rd = 22 [features.repeated_field_encoding = EXPANDED];
  repeated Wide rw = 23;
  repeated Shut rsh = 24 [features = { repeated_field_encoding: PACKED }];
  repeated string rst = 25;
  repeated Rec rec_list = 26;
  map<string, Rec> map_rec = 27;
  map<int32, bool> map_bool = 28;
  map<bool, Wide> map_wide = 29;
  oneof choice { int32 ci = 30; string cs = 31; Rec cm = 32; Asis ce = 33; }
  int32 ex = 34 [features.field_presence = EXPLICIT, default = -7];
  int32 im = 35 [features.field_presence = IMPLICIT];
  string ims = 36 [features.field_presence = IMPLICIT];
  int32 req = 37 [features.field_presence = LEGACY_REQUIRED];
  google.protobuf.Timestamp at = 38;
  repeated Asis ra = 39;
  double inf = 40 [features.field_presence = EXPLICIT, default = -inf];
  string quoted = 41 [features.field_presence = EXPLICIT, default = "a\"; reserved x;"];
  int32 default = 42;
}
extend M { repeated int32 ext = 1000; M.Rec ext_rec = 1001; int32 ext_one = 1002; }
"#,
    );
    text
}

fn messages() -> Vec<Value> {
    let rec = json!({"a": 0, "rec": {"a": 5, "rec": {}}, "recs": [{}, {"a": 1}], "default": ""});
    let mut zero = json!({"req": 0, "i32": 0, "long": "0", "u32": 0, "u64": 0, "s32": 0, "s64": 0,
        "f32": 0, "sf64": 0, "fl": 0, "db": 0, "bo": false, "st": "", "by": "", "wide": 0,
        "inner": 0, "rec": {}, "whole": {}, "group": {}, "ri": [], "mapBool": {}, "ex": 0,
        "im": 0, "ims": "", "at": "1970-01-01T00:00:00Z", "inf": 0, "quoted": "", "default": 0});
    let some = json!({"req": -1, "i32": -1, "i64": 1i64 << 53, "u32": 4_294_967_295u32, "u64": "18446744073709551615",
        "s32": -5, "s64": "-9007199254740993", "f32": 7, "sf64": "-1", "fl": 0.1, "db": -1.5,
        "bo": true, "st": "é", "by": "AQI=", "shut": "SHUT_NEG", "wide": "WIDE_ONE",
        "inner": "INNER_UNO", "rec": rec, "whole": rec, "group": rec, "ri": [0, 1, -1],
        "rs": [0, -1, 300], "rd": [0, 0.5], "rw": [0, 1, 7], "rsh": [1, "SHUT_TWO"],
        "rst": ["", "x"], "recList": [rec, {}], "mapRec": {"k": rec}, "mapBool": {"0": false},
        "mapWide": {"true": 0}, "ex": 1, "im": 1, "ims": "x", "at": "2026-01-31T12:00:00.5Z",
        "ra": [1, 0], "default": 3});
    let mut all = vec![json!({}), json!({"req": 1}), some];
    for (key, value) in [
        ("ci", json!(0)),
        ("cs", json!("")),
        ("cm", json!({})),
        ("cm", rec.clone()),
        ("ce", json!(0)),
    ] {
        all.push(json!({"req": 1, key: value}));
    }
    for (key, value) in [
        // Numbers that an enum does not define; whether two of them are valid depends on the last file-wide
        // feature.
        ("shut", json!(0)),
        ("shut", json!(3)),
        ("rsh", json!([1, 9])),
        ("wide", json!(9)),
        ("ce", json!(9)),
        ("ra", json!([9])),
        ("shut", json!("Shut__has_no_zero")),
        ("inner", Value::Null),
    ] {
        all.push(json!({"req": 1, key: value}));
    }
    zero["shut"] = json!(1);
    all.push(zero);
    all
}

/// Returns the messages as Python's runtime encodes them, in hexadecimal.
fn python(folder: &Path, questions: &str) -> Vec<String> {
    let python = root().join(".peers/venv/bin/python");
    assert!(python.exists(), "no .peers/venv: run `make setup-tests`");
    let mut child = Command::new(python)
        .arg(root().join("tests/peers/editions.py"))
        .arg("encode")
        .arg(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let questions = questions.to_owned();
    let asking = std::thread::spawn(move || stdin.write_all(questions.as_bytes()).unwrap());
    let out = child.wait_with_output().unwrap();
    asking.join().unwrap();
    assert!(out.status.success());
    let text = String::from_utf8(out.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn every_edition_feature_encodes_like_python() {
    let folder = tempfile::tempdir().unwrap();
    let messages = messages();
    let mut questions = String::new();
    let mut asked = Vec::new();
    for edition in ["2023", "2024"] {
        for set in 0..1 << FEATURES.len() {
            let name = format!("e{edition}_{set}.proto");
            std::fs::write(folder.path().join(&name), file(edition, set)).unwrap();
            for message in &messages {
                let package = format!("e{edition}.f{set}");
                writeln!(questions, "{}", json!([format!("{package}.M"), message])).unwrap();
                asked.push((name.clone(), package, message));
            }
        }
    }
    let answers = python(folder.path(), &questions);
    assert_eq!(answers.len(), asked.len());
    let refused = answers.iter().filter(|answer| *answer == "refused").count();
    assert!(refused > 0 && refused < answers.len() / 2, "{refused}");

    let all = Schema::from_descriptor_set(&folder.path().join("all.binpb")).unwrap();
    let mut sources = std::collections::BTreeMap::new();
    for ((file, package, message), answer) in asked.into_iter().zip(answers) {
        let source = sources
            .entry(file.clone())
            .or_insert_with(|| Schema::from_protos(&[folder.path().join(&file)], &[]).unwrap());
        for schema in [&all, &*source] {
            let method = schema.method(&format!("{package}.S/Call")).unwrap();
            let encoded = match schema.encode(&method, &message.to_string()) {
                Ok(bytes) => {
                    schema.decode(&method, &bytes).unwrap();
                    hex(&bytes)
                }
                Err(_) => "refused".to_owned(),
            };
            assert_eq!(encoded, answer, "{file}: {message}");
        }
    }
}

#[test]
fn invalid_edition_error_names_position() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.proto");
    for (text, said) in [
        (
            "edition = \"2023\";\nmessage A {\n  int32 a = ;\n}\n",
            &["a.proto:3:13:", "expected"][..],
        ),
        (
            "edition = \"2023\";\nmessage A {\n  Absent a = 1;\n}\n",
            &["a.proto", "Absent"][..],
        ),
        (
            "edition = \"2077\";\nmessage A {}\n",
            &["a.proto:1:1", "2077", "2024"][..],
        ),
        ("edition = 2023;", &["a.proto:1:"][..]),
        ("edition = \"2023", &["a.proto:1:"][..]),
        ("edition = \"2023\"; reserved", &["a.proto:1:"][..]),
        ("edition = \"2023\"; /*", &["comment terminator"][..]),
    ] {
        std::fs::write(&path, text).unwrap();
        let error = Schema::from_protos(std::slice::from_ref(&path), &[]);
        let error = error.unwrap_err().to_string();
        for part in said {
            assert!(error.contains(part), "{text}: {part} in {error}");
        }
    }
}
