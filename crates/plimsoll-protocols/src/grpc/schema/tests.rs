//! This file is long because each mistake in a schema or a message has an error text of its own.

mod sources;

use std::fs;
use std::path::PathBuf;

use prost_reflect::prost::Message as _;

use super::*;

/// A temporary folder of `.proto` files.
struct Protos(tempfile::TempDir);

impl Protos {
    fn new(files: &[(&str, &str)]) -> Protos {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        Protos(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn schema(&self, file: &str) -> Result<Schema, SchemaError> {
        Schema::from_protos(&[self.path(file)], &[])
    }
}

const SHOP: &str = r#"
syntax = "proto3";
package shop.v1;
import "money.proto";
import "google/protobuf/timestamp.proto";
service Shop {
  rpc Buy(Basket) returns (Receipt);
  rpc Watch(Basket) returns (stream Receipt);
  rpc Fill(stream Basket) returns (Receipt);
  rpc Haggle(stream Basket) returns (stream Receipt);
}
enum Colour { GREY = 0; RED = 1; }
message Basket {
  repeated Item items = 1;
  map<string, Item> gifts = 2;
  google.protobuf.Timestamp bought_at = 3;
  oneof payment { money.Amount cash = 4; string card_number = 5; }
  optional int32 age = 6;
  bytes token = 7;
}
message Item { string name = 1; int64 price = 2; Colour colour = 3; Item inside = 4; }
message Receipt { double total = 1; bool paid = 2; string note = 3; }
"#;
const MONEY: &str = "syntax = \"proto3\"; package money; message Amount { int64 cents = 1; }";

fn shop() -> (Protos, Schema) {
    let protos = Protos::new(&[("shop.proto", SHOP), ("money.proto", MONEY)]);
    let schema = protos.schema("shop.proto").unwrap();
    (protos, schema)
}

fn encode_error(schema: &Schema, json: &str) -> String {
    let method = schema.method("shop.v1.Shop/Buy").unwrap();
    schema.encode(&method, json).unwrap_err().to_string()
}

#[test]
fn builtin_messages_encode_as_protobuf() {
    let schema = Schema::builtin().unwrap();
    let score = schema.method("score.ScoreService/GetScore").unwrap();
    assert_eq!(score.kind(), MethodKind::Unary);
    assert_eq!(
        schema.encode(&score, r#"{"json": "[1]"}"#).unwrap(),
        b"\x0a\x03[1]"
    );
    assert_eq!(schema.encode(&score, "{}").unwrap(), b"");

    let submit = schema.method("orders.OrderService/Submit").unwrap();
    let json = r#"{"instrumentID": 1, "price": "300", "quantity": -1, "side": true}"#;
    assert_eq!(
        schema.encode(&submit, json).unwrap(),
        [
            0x08, 1, 0x10, 0xac, 2, 0x18, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 0x20, 1
        ]
    );
    assert_eq!(
        schema.decode(&submit, &[8, 1]).unwrap(),
        r#"{"received":true}"#
    );
    assert_eq!(
        schema.decode(&submit, &[]).unwrap(),
        r#"{"received":false}"#
    );
    let error = schema.decode(&submit, &[8]).unwrap_err().to_string();
    assert!(error.contains("orders.OrderReply"), "{error}");
}

#[test]
fn method_has_three_spellings_and_suggestions() {
    let (_protos, schema) = shop();
    let expected = schema.method("shop.v1.Shop/Buy").unwrap();
    assert_eq!(expected.path(), "shop.v1.Shop/Buy");
    assert_eq!(schema.method("/shop.v1.Shop/Buy").unwrap(), expected);
    assert_eq!(schema.method("shop.v1.Shop.Buy").unwrap(), expected);
    for (wrong, right) in [
        ("shop.v1.Shop/Bye", "did you mean shop.v1.Shop/Buy?"),
        ("shop.v1.shop/buy", "did you mean shop.v1.Shop/Buy?"),
        ("Shop/Buy", "did you mean shop.v1.Shop/Buy?"),
        ("Haggle", "did you mean shop.v1.Shop/Haggle?"),
    ] {
        let error = schema.method(wrong).unwrap_err().to_string();
        assert!(
            error.contains(wrong) && error.contains("shop.proto"),
            "{error}"
        );
        assert!(error.contains(right), "{wrong}: {error}");
    }
    for wrong in ["", "/", "nonsense", "a/"] {
        let error = schema.method(wrong).unwrap_err().to_string();
        assert!(error.contains("package.Service/Method"), "{wrong}: {error}");
    }
    let error = schema
        .method("entirely.Other/Thing")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("is not in") && !error.contains("did you mean"),
        "{error}"
    );
}

#[test]
fn streaming_kinds_are_listed() {
    let (_protos, schema) = shop();
    let kinds: Vec<_> = schema.methods().map(|method| method.kind()).collect();
    assert_eq!(
        kinds,
        [
            MethodKind::Unary,
            MethodKind::ServerStreaming,
            MethodKind::ClientStreaming,
            MethodKind::Bidirectional
        ]
    );
    assert_eq!(
        schema.list_methods(),
        "shop.v1.Shop/Buy (unary): shop.v1.Basket -> shop.v1.Receipt\n\
         shop.v1.Shop/Watch (server streaming): shop.v1.Basket -> shop.v1.Receipt\n\
         shop.v1.Shop/Fill (client streaming): shop.v1.Basket -> shop.v1.Receipt\n\
         shop.v1.Shop/Haggle (bidirectional streaming): shop.v1.Basket -> shop.v1.Receipt\n"
    );
}

#[test]
fn every_json_form_is_encoded() {
    let (_protos, schema) = shop();
    let buy = schema.method("shop.v1.Shop/Buy").unwrap();
    let json = r#"{
        "items": [{"name": "pen", "price": "9007199254740993", "colour": "RED"}, {"colour": 1}],
        "gifts": {"a": {"name": "ink", "inside": {"name": "blue"}}},
        "boughtAt": "1970-01-01T00:00:01Z",
        "card_number": "4",
        "age": null,
        "token": "AQI="
    }"#;
    let bytes = schema.encode(&buy, json).unwrap();
    let message =
        prost_reflect::DynamicMessage::decode(buy.descriptor.input(), bytes.as_slice()).unwrap();
    let text = message.to_string();
    for part in [
        "9007199254740993",
        "RED",
        "\"blue\"",
        "seconds:1",
        "card_number:\"4\"",
    ] {
        assert!(text.replace(": ", ":").contains(part), "{part} in {text}");
    }
    assert!(!text.contains("age"), "{text}");
}

#[test]
fn unknown_field_error_has_path_and_suggestion() {
    let (_protos, schema) = shop();
    for (json, path, right) in [
        (r#"{"itmes": []}"#, "\"itmes\"", "did you mean items?"),
        (
            r#"{"items": [{}, {"prise": 1}]}"#,
            "\"items[1].prise\"",
            "did you mean price?",
        ),
        (
            r#"{"gifts": {"x": {"Name": ""}}}"#,
            "\"gifts.x.Name\"",
            "did you mean name?",
        ),
        (
            r#"{"cash": {"cent": 1}}"#,
            "\"cash.cent\"",
            "did you mean cents?",
        ),
        (
            r#"{"items": [{"inside": {"colr": 1}}]}"#,
            "\"items[0].inside.colr\"",
            "colour",
        ),
        (r#"{"zzzzzzzzz": 1}"#, "\"zzzzzzzzz\"", "no field"),
    ] {
        let error = encode_error(&schema, json);
        assert!(error.contains("shop.v1.Basket"), "{error}");
        assert!(
            error.contains(path) && error.contains(right),
            "{json}: {error}"
        );
    }
}

#[test]
fn invalid_value_error_names_path() {
    let (_protos, schema) = shop();
    for (json, path) in [
        (r#"{"items": [{"price": "dear"}]}"#, "items[0].price"),
        (r#"{"items": [{}, {"colour": "MAUVE"}]}"#, "items[1].colour"),
        (r#"{"items": {}}"#, "items"),
        (r#"{"items": 3}"#, "items"),
        (r#"{"age": 3000000000}"#, "age"),
        (r#"{"token": "not base64!"}"#, "token"),
        (r#"{"boughtAt": "yesterday"}"#, "boughtAt"),
        (r#"{"gifts": {"x": {"name": 1}}}"#, "gifts.x.name"),
    ] {
        let error = encode_error(&schema, json);
        assert!(
            error.contains(&format!("field \"{path}\"")),
            "{json}: {error}"
        );
    }
    for json in ["", "{", "{\"items\": [}", "{} {}"] {
        let error = encode_error(&schema, json);
        assert!(
            error.contains("not valid JSON") && error.contains("column"),
            "{json}: {error}"
        );
    }
    for json in ["[]", "3", "\"x\"", r#"{"cash": {}, "card_number": "1"}"#] {
        encode_error(&schema, json);
    }
}

#[test]
fn type_mismatch_error_names_expected_type() {
    let (_protos, schema) = shop();
    for (json, right) in [
        (
            "[0.1, 0.2]",
            "; write a JSON object with items (repeated shop.v1.Item), gifts (map<string, shop.v1.Item>), ",
        ),
        (
            r#"{"items": [{"price": "dear"}]}"#,
            "; write a whole number (int64)",
        ),
        (
            r#"{"items": [{"colour": "MAUVE"}]}"#,
            "; write one of \"GREY\", \"RED\", or its number",
        ),
        (
            r#"{"items": 3}"#,
            "; write a JSON list, each of which is a JSON object with name (string), price (int64), ",
        ),
        (
            r#"{"items": ["x"]}"#,
            "; write a JSON object with name (string)",
        ),
        (
            r#"{"items": [{"inside": 3}]}"#,
            "; write a JSON object with name (string)",
        ),
        (
            r#"{"gifts": []}"#,
            "; write a JSON object (map<string, shop.v1.Item>)",
        ),
        (
            r#"{"gifts": {"x": {"name": 1}}}"#,
            "; write a string, in quotes",
        ),
        (
            r#"{"cash": {"cents": true}}"#,
            "; write a whole number (int64)",
        ),
        (r#"{"token": "not base64!"}"#, "; write a string of base64"),
        (
            r#"{"boughtAt": "yesterday"}"#,
            "; write a time such as \"2026-",
        ),
        (
            r#"{"items": [{"weight": 1}]}"#,
            "; its fields are name (string), price (int64), colour (shop.v1.Colour), inside (shop.v1.Item)",
        ),
    ] {
        let error = encode_error(&schema, json);
        assert!(error.contains(right), "{json}: {error}");
    }
    // Each field is valid by itself, but only one of a oneof may be set.
    let error = encode_error(&schema, r#"{"cash": {}, "card_number": "1"}"#);
    assert!(!error.contains("write"), "{error}");
}

#[test]
fn proto_error_names_file_and_line() {
    let protos = Protos::new(&[
        (
            "syntax.proto",
            "syntax = \"proto3\";\nmessage A {\n  int32 a = ;\n}\n",
        ),
        (
            "import.proto",
            "syntax = \"proto3\";\n\nimport \"absent.proto\";\n",
        ),
        (
            "type.proto",
            "syntax = \"proto3\";\nmessage A {\n  Absent a = 1;\n}\n",
        ),
        (
            "twice.proto",
            "syntax = \"proto3\";\nmessage A {\n  int32 a = 1;\n  int32 b = 1;\n}\n",
        ),
        (
            "cycle.proto",
            "syntax = \"proto3\"; import \"cycle.proto\";",
        ),
        ("service.proto", "syntax = \"proto3\"; message A {}"),
    ]);
    for (file, position, said) in [
        ("syntax.proto", "syntax.proto:3:", "expected"),
        ("import.proto", "import.proto:3:", "absent.proto"),
        ("type.proto", "type.proto:3:", "Absent"),
        ("twice.proto", "twice.proto:", "1"),
        ("cycle.proto", "", "cycle"),
    ] {
        let error = protos.schema(file).unwrap_err().to_string();
        assert!(
            error.contains(position) && error.contains(said),
            "{file}: {error}"
        );
    }
    let error = protos.schema("import.proto").unwrap_err().to_string();
    assert!(error.contains("import path"), "{error}");

    let error = protos.schema("nowhere.proto").unwrap_err().to_string();
    assert!(
        error.contains("nowhere.proto") && error.contains("no such file"),
        "{error}"
    );
    let error = Schema::from_protos(&[protos.path("type.proto")], &[protos.path("no-dir")])
        .unwrap_err()
        .to_string();
    assert!(error.contains("no-dir"), "{error}");
    let error = Schema::from_protos(&[], &[]).unwrap_err().to_string();
    assert_eq!(error, "no proto file given");

    let schema = protos.schema("service.proto").unwrap();
    assert!(
        schema.list_methods().contains("no services"),
        "{}",
        schema.list_methods()
    );
    assert!(schema.method("a.B/C").is_err());
}

#[test]
fn imports_resolve_from_import_paths() {
    let protos = Protos::new(&[("api/shop.proto", SHOP), ("lib/money.proto", MONEY)]);
    let error = protos.schema("api/shop.proto").unwrap_err().to_string();
    assert!(error.contains("money.proto"), "{error}");
    let includes = [protos.path("lib")];
    let schema = Schema::from_protos(&[protos.path("api/shop.proto")], &includes).unwrap();
    assert!(schema.method("shop.v1.Shop/Buy").is_ok());
    // A file may also be named relative to an import path.
    let includes = [protos.path("api"), protos.path("lib")];
    let schema = Schema::from_protos(&[PathBuf::from("shop.proto")], &includes).unwrap();
    assert!(schema.method("shop.v1.Shop/Buy").is_ok());
}

#[test]
fn descriptor_set_encodes_like_its_protos() {
    let (protos, schema) = shop();
    let path = protos.path("shop.binpb");
    let set = protox::compile(["shop.proto"], [protos.0.path()]).unwrap();
    fs::write(&path, set.encode_to_vec()).unwrap();
    let from_set = Schema::from_descriptor_set(&path).unwrap();
    let json = r#"{"items": [{"name": "pen"}], "cash": {"cents": 3}}"#;
    let buy = |schema: &Schema| {
        let method = schema.method("shop.v1.Shop/Buy").unwrap();
        schema.encode(&method, json).unwrap()
    };
    assert_eq!(buy(&schema), buy(&from_set));

    for (content, said) in [
        (&b"no descriptor at all"[..], "shop.binpb"),
        (&b""[..], "no file descriptors"),
        // The set lacks the files that it imports.
        (
            &Compiler::new([protos.0.path()])
                .unwrap()
                .open_file("shop.proto")
                .unwrap()
                .encode_file_descriptor_set()[..],
            "money.proto",
        ),
    ] {
        fs::write(&path, content).unwrap();
        let error = Schema::from_descriptor_set(&path).unwrap_err().to_string();
        assert!(error.contains(said), "{said}: {error}");
    }
    let error = Schema::from_descriptor_set(&protos.path("absent"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("absent"), "{error}");
}

#[test]
fn methods_and_messages_can_be_described() {
    let (_protos, schema) = shop();
    let text = schema.describe("shop.v1.Shop/Buy").unwrap();
    for part in [
        "shop.v1.Shop/Buy (unary)",
        "  repeated shop.v1.Item items = 1;",
        "  map<string, shop.v1.Item> gifts = 2;",
        "  string card_number = 5;  // one of payment",
        "  optional int32 age = 6;",
        "message money.Amount {",
        "enum shop.v1.Colour {\n  GREY = 0;\n  RED = 1;\n}",
        "message shop.v1.Receipt {",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    // A recursive message is described once.
    assert_eq!(text.matches("message shop.v1.Item {").count(), 1);
    assert_eq!(
        schema.describe("shop.v1.Shop").unwrap(),
        schema.list_methods()
    );
    assert!(
        schema
            .describe("shop.v1.Colour")
            .unwrap()
            .starts_with("enum")
    );
    let error = schema.describe("shop.v1.Itm").unwrap_err().to_string();
    assert!(error.contains("did you mean shop.v1.Item?"), "{error}");
}

/// A pseudo-random number generator (xorshift64).
struct Dice(u64);

impl Dice {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % below.max(1)
    }
}

/// Calls every function of a schema of unknown origin.
fn exercise(schema: &Schema) {
    schema.list_methods();
    for name in schema.pool.all_messages() {
        schema.describe(name.full_name()).unwrap();
    }
    for method in schema.methods() {
        let fields: Vec<_> = method.descriptor.input().fields().collect();
        for value in [
            "0",
            "1",
            "\"x\"",
            "{}",
            "[]",
            "[{}]",
            "[1]",
            r#"{"1": {}}"#,
            "true",
            "1.5",
        ] {
            for field in &fields {
                let json = format!("{{{:?}: {value}}}", field.json_name());
                if let Ok(bytes) = schema.encode(&method, &json) {
                    let _ = schema.decode(&method, &bytes);
                }
            }
        }
        let _ = schema.decode(&method, b"\x08\x01\x12\x02\x08\x01\x1a\x00");
    }
}

#[test]
fn corrupt_descriptor_sets_never_panic() {
    const OTHERS: &str = r#"
syntax = "proto2";
package others;
import "google/protobuf/any.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/duration.proto";
message All {
  required int32 must = 1 [default = 5];
  optional group G = 2 { optional All all = 1; }
  repeated int64 packed = 3 [packed = true];
  map<string, All> named = 4;
  map<int32, bytes> numbered = 5;
  oneof one { google.protobuf.Any any = 6; google.protobuf.Struct open = 7; }
  optional google.protobuf.Int64Value boxed = 8;
  optional google.protobuf.Duration long = 9;
  enum Kind { option allow_alias = true; A = 1; B = 1; C = -5; }
  optional Kind kind = 10 [default = C];
  extensions 100 to 199;
  extend All { optional bytes ext = 100 [default = "\\001x"]; }
  reserved 50 to 60, 70;
}
service S { rpc Call(All) returns (stream All); }
"#;
    let protos = Protos::new(&[
        ("shop.proto", SHOP),
        ("money.proto", MONEY),
        ("others.proto", OTHERS),
    ]);
    let mut compiler = Compiler::new([protos.0.path()]).unwrap();
    compiler.include_imports(true);
    for file in ["shop.proto", "others.proto"] {
        compiler.open_file(file).unwrap();
    }
    let mut set = compiler.file_descriptor_set();
    let proto = set.encode_to_vec();
    for file in &mut set.file {
        file.syntax = Some("editions".to_owned());
    }
    let files: Vec<Vec<u8>> = set
        .file
        .iter()
        .map(|file| {
            // `edition = EDITION_2023`, `options.features.enum_type = CLOSED`
            let said = [0x70, 0xe8, 0x07, 0x42, 5, 0x92, 3, 2, 0x10, 2];
            [&file.encode_to_vec()[..], &said].concat()
        })
        .collect();
    let mut editions = Vec::new();
    for file in &files {
        prost_reflect::prost::encoding::bytes::encode(1, file, &mut editions);
    }
    let read = |bytes: &[u8]| {
        let files = ProtoFile::decode_set(bytes).ok()?;
        let assembled = assemble(files, &BTreeMap::new());
        let broken = assembled.broken.len();
        exercise(&Schema::from_assembled(
            assembled,
            "a set".to_owned(),
            BTreeMap::new(),
        ));
        Some(broken)
    };
    assert_eq!(read(&proto), Some(0));
    assert_eq!(read(&editions), Some(0));

    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let (mut whole, mut broken) = (0, 0);
    for round in 0..1_500 {
        let mut bytes = if round % 2 == 0 {
            proto.clone()
        } else {
            editions.clone()
        };
        for _ in 0..=dice.next(6) {
            let at = dice.next(bytes.len());
            match dice.next(5) {
                0 => bytes[at] ^= 1 << dice.next(8),
                1 => bytes[at] = [0, 1, 2, 3, 4, 9, 10, 11, 14, 0x7f, 0x80, 0xff][dice.next(12)],
                2 => bytes[at] = dice.next(256) as u8,
                3 => {
                    let from = dice.next(bytes.len());
                    bytes[at] = bytes[from];
                }
                // An increment turns one type's name, or one field number, into another.
                _ => bytes[at] = bytes[at].wrapping_add(1),
            }
        }
        match read(&bytes) {
            Some(0) => whole += 1,
            Some(_) => broken += 1,
            None => {}
        }
    }
    // The mutations reach the code after decoding.
    assert!(whole > 50 && broken > 200, "{whole} {broken}");
}

#[test]
fn malformed_descriptors_are_rejected_individually() {
    use prost_reflect::prost_types::field_descriptor_proto::{Label, Type};
    use prost_reflect::prost_types::{
        DescriptorProto, FieldDescriptorProto, FileDescriptorProto, MessageOptions,
    };
    let field =
        |name: &str, number: i32, kind: Type, type_name: Option<&str>| FieldDescriptorProto {
            name: Some(name.to_owned()),
            number: Some(number),
            label: Some(Label::Optional as i32),
            r#type: Some(kind as i32),
            type_name: type_name.map(str::to_owned),
            ..FieldDescriptorProto::default()
        };
    let message = |name: &str, fields: Vec<FieldDescriptorProto>| DescriptorProto {
        name: Some(name.to_owned()),
        field: fields,
        ..DescriptorProto::default()
    };
    let file = |name: &str, package: &str, message: DescriptorProto| FileDescriptorProto {
        name: Some(name.to_owned()),
        package: Some(package.to_owned()),
        syntax: Some("proto3".to_owned()),
        message_type: vec![message],
        ..FileDescriptorProto::default()
    };
    let mut entry = message(
        "Entry",
        vec![
            field("key", 1, Type::Double, None),
            field("value", 2, Type::Double, None),
        ],
    );
    entry.options = Some(MessageOptions {
        map_entry: Some(true),
        ..MessageOptions::default()
    });
    let mut in_a_circle = file("circle.proto", "c", message("A", Vec::new()));
    in_a_circle.dependency = vec!["circle.proto".to_owned()];
    let mut needs = file(
        "needs.proto",
        "n",
        message("A", vec![field("x", 1, Type::Message, Some(".gone.X"))]),
    );
    needs.dependency = vec!["gone.proto".to_owned()];
    let mut unneeding = file("unneeding.proto", "u", message("A", Vec::new()));
    unneeding.dependency = vec!["gone.proto".to_owned()];
    let mut syntax = file("syntax.proto", "s", message("A", Vec::new()));
    syntax.syntax = Some("proto9".to_owned());
    let stamp = message("Timestamp", vec![field("seconds", 1, Type::String, None)]);
    let files = [
        (file("entry.proto", "e", entry), "its key"),
        (in_a_circle, "imports itself"),
        (needs, "import gone.proto: it was lost"),
        (unneeding, ""),
        (syntax, "proto9"),
        (
            file("stamp.proto", "google.protobuf", stamp),
            "comes with protobuf",
        ),
        (
            file("name.proto", "m", message("a b", Vec::new())),
            "\"a b\"",
        ),
        (file("good.proto", "g", message("A", Vec::new())), ""),
    ];
    let descriptors = files
        .iter()
        .map(|(file, _)| ProtoFile::decode(&file.encode_to_vec()).unwrap())
        .collect();
    let absent = BTreeMap::from([("gone.proto".to_owned(), "it was lost".to_owned())]);
    let assembled = assemble(descriptors, &absent);
    for (file, said) in files {
        let why = assembled.broken.get(file.name()).map_or("", String::as_str);
        assert!(
            why.contains(said) && why.is_empty() == said.is_empty(),
            "{}: {why}",
            file.name()
        );
    }
    assert!(assembled.pool.get_message_by_name("g.A").is_some());
}

#[test]
fn missing_required_field_is_named() {
    let protos = Protos::new(&[(
        "old.proto",
        r#"syntax = "proto2"; package old;
        message A { required int32 id = 1; optional B b = 2; repeated B bs = 3; map<string, B> named = 4; }
        message B { required string name = 1; }
        service S { rpc Call(A) returns (A); }"#,
    )]);
    let schema = protos.schema("old.proto").unwrap();
    let call = schema.method("old.S/Call").unwrap();
    for (json, path) in [
        ("{}", "\"id\""),
        (r#"{"id": 1, "b": {}}"#, "\"b.name\""),
        (r#"{"id": 1, "bs": [{"name": ""}, {}]}"#, "\"bs[1].name\""),
        (r#"{"id": 1, "named": {"k": {}}}"#, "\"named.k.name\""),
    ] {
        let error = schema.encode(&call, json).unwrap_err().to_string();
        assert!(
            error.contains(path) && error.contains("required"),
            "{error}"
        );
        let error = schema
            .encode_all(&call, json, None)
            .unwrap_err()
            .to_string();
        assert!(error.contains(path), "{error}");
    }
    assert_eq!(schema.encode(&call, r#"{"id": 0}"#).unwrap(), [8, 0]);
    let described = schema.describe("old.A").unwrap();
    assert!(
        described.contains("  required int32 id = 1;"),
        "{described}"
    );
}
