use std::fs;
use std::path::PathBuf;

use prost_reflect::prost::Message as _;

use super::*;

/// A folder of protos.
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
fn built_in_messages_have_the_bytes_of_the_protobuf_encoding() {
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
fn a_method_goes_by_three_spellings_and_wrong_ones_bring_suggestions() {
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
fn kinds_of_streaming_are_known_and_listed() {
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
        schema.list(),
        "shop.v1.Shop/Buy (unary): shop.v1.Basket -> shop.v1.Receipt\n\
         shop.v1.Shop/Watch (server streaming): shop.v1.Basket -> shop.v1.Receipt\n\
         shop.v1.Shop/Fill (client streaming): shop.v1.Basket -> shop.v1.Receipt\n\
         shop.v1.Shop/Haggle (bidirectional streaming): shop.v1.Basket -> shop.v1.Receipt\n"
    );
}

#[test]
fn json_in_all_its_forms_is_encoded() {
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
fn a_wrong_field_is_named_by_its_path_with_the_nearest_right_name() {
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
fn a_wrong_value_is_named_by_its_path() {
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
fn what_does_not_fit_is_told_what_would() {
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
            "; write a JSON list, of which each is a JSON object with name (string), price (int64), ",
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
            "; there is name (string), price (int64), colour (shop.v1.Colour), inside (shop.v1.Item)",
        ),
    ] {
        let error = encode_error(&schema, json);
        assert!(error.contains(right), "{json}: {error}");
    }
    // Each field is right by itself.
    let error = encode_error(&schema, r#"{"cash": {}, "card_number": "1"}"#);
    assert!(!error.contains("write"), "{error}");
}

#[test]
fn bad_protos_are_named_with_file_and_line() {
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
    assert!(matches!(
        Schema::from_protos(&[], &[]),
        Err(SchemaError::NoFiles)
    ));

    let schema = protos.schema("service.proto").unwrap();
    assert!(schema.list().contains("no services"), "{}", schema.list());
    assert!(schema.method("a.B/C").is_err());
}

#[test]
fn imports_come_from_the_import_paths() {
    let protos = Protos::new(&[("api/shop.proto", SHOP), ("lib/money.proto", MONEY)]);
    let error = protos.schema("api/shop.proto").unwrap_err().to_string();
    assert!(error.contains("money.proto"), "{error}");
    let includes = [protos.path("lib")];
    let schema = Schema::from_protos(&[protos.path("api/shop.proto")], &includes).unwrap();
    assert!(schema.method("shop.v1.Shop/Buy").is_ok());
    // A file may also be named as imports name it.
    let includes = [protos.path("api"), protos.path("lib")];
    let schema = Schema::from_protos(&[PathBuf::from("shop.proto")], &includes).unwrap();
    assert!(schema.method("shop.v1.Shop/Buy").is_ok());
}

#[test]
fn a_descriptor_set_serves_as_well_as_its_protos() {
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
        // Without the files it imports.
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
fn what_there_is_can_be_described() {
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
    // A message that holds itself is described once.
    assert_eq!(text.matches("message shop.v1.Item {").count(), 1);
    assert_eq!(schema.describe("shop.v1.Shop").unwrap(), schema.list());
    assert!(
        schema
            .describe("shop.v1.Colour")
            .unwrap()
            .starts_with("enum")
    );
    let error = schema.describe("shop.v1.Itm").unwrap_err().to_string();
    assert!(error.contains("did you mean shop.v1.Item?"), "{error}");
}
