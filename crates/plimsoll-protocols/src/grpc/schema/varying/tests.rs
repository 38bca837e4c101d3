//! This file is long because the results are compared with an independent encoder, which generates messages of every
//! kind.

use std::fmt::Write as _;

use proptest::prelude::*;
use protox::Compiler;
use protox::file::{File, FileResolver};

use super::*;
use crate::grpc::schema::editions::UnsupportedFeatures;

/// A resolver of one `.proto` file, given as text.
struct SingleProto(String);

impl FileResolver for SingleProto {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        match name {
            "a.proto" => File::from_source(name, &self.0),
            _ => protox::file::GoogleFileResolver::new().open_file(name),
        }
    }
}

fn schema(source: &str) -> Schema {
    let mut compiler = Compiler::with_file_resolver(SingleProto(source.to_owned()));
    compiler
        .open_file("a.proto")
        .unwrap_or_else(|e| panic!("{e:?}: {source}"));
    Schema::new(
        compiler.descriptor_pool(),
        "a.proto".to_owned(),
        UnsupportedFeatures::default(),
    )
}

fn rows() -> Rows {
    Rows::parse(
        "r.csv",
        "word,number,flag,colour,data,when\n\
         ,0,false,GREY,,1970-01-01T00:00:00Z\n\
         short,7,true,RED,AAEC,2026-11-21T09:30:00.5Z\n\
         \"a longer text, with a comma\",2147483647,true,1,/////w==,2000-02-29T23:59:59Z\n",
    )
    .unwrap()
}

/// A generator of choices from one seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % n
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// A random schema, and a random message of it with templates.
struct SchemaGenerator {
    dice: Dice,
    /// Definitions of messages.
    source: String,
    messages: u32,
}

const SCALARS: [&str; 17] = [
    "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32",
    "sfixed64", "float", "double", "bool", "string", "bytes", "Colour", "when",
];

impl SchemaGenerator {
    /// Generates a message type; returns its name, and a message as JSON.
    fn message(&mut self, depth: u32) -> (String, String) {
        self.messages += 1;
        let name = format!("M{}", self.messages);
        let (mut fields, mut json) = (String::new(), Vec::new());
        let mut number = 0;
        for i in 0..1 + self.dice.below(6) {
            number += 1 + self.dice.below(3) * self.dice.below(900);
            if (19_000..20_000).contains(&number) {
                number = 20_000;
            }
            let (kind, label, value) = self.field(depth);
            let _ = writeln!(fields, "  {label}{kind} f{i} = {number};");
            if let Some(value) = value {
                // The order of fields in the text differs from that of their numbers.
                let at = self.dice.below(json.len() as u64 + 1) as usize;
                json.insert(at, format!("\"f{i}\": {value}"));
            }
        }
        let _ = writeln!(self.source, "message {name} {{\n{fields}}}");
        (name, format!("{{{}}}", json.join(", ")))
    }

    /// Generates a field: its type, label and JSON. A map has no label.
    fn field(&mut self, depth: u32) -> (String, &'static str, Option<String>) {
        let nested = depth < 3 && self.dice.below(3) == 0;
        let (kind, sample) = if nested {
            self.message(depth + 1)
        } else {
            let kind = self.dice.one(&SCALARS);
            (kind.to_owned(), String::new())
        };
        let value = |shape: &mut SchemaGenerator| {
            if nested {
                sample.clone()
            } else {
                shape.value(&kind)
            }
        };
        let (label, json) = match self.dice.below(5) {
            0 => ("", value(self)),
            1 => ("optional ", value(self)),
            2 => {
                let count = self.dice.below(4);
                let items: Vec<String> = (0..count).map(|_| value(self)).collect();
                ("repeated ", format!("[{}]", items.join(", ")))
            }
            3 => {
                let key = self.dice.one(&["int32", "string", "bool", "sint64"]);
                let json = match key {
                    "string" => format!("{{\"k\": {}}}", value(self)),
                    "bool" => format!("{{\"true\": {}}}", value(self)),
                    _ => format!("{{\"5\": {}}}", value(self)),
                };
                let kind = proto_name(&kind);
                return (format!("map<{key}, {kind}>"), "", Some(json));
            }
            _ => return (proto_name(&kind), "", None),
        };
        (proto_name(&kind), label, Some(json))
    }

    /// Generates the JSON of a scalar: a constant or a template, bare or in quotes.
    fn value(&mut self, kind: &str) -> String {
        if self.dice.below(3) == 0 {
            return constant(kind, self.dice.below(4)).to_owned();
        }
        let template: &str = match kind {
            "bool" => self.dice.one(&["{{random 0 1}}", "{{row.flag}}"]),
            "Colour" => self
                .dice
                .one(&["{{random 0 1}}", "{{row.colour}}", "{{seq}}"]),
            "bytes" => self.dice.one(&["{{uuid}}", "{{row.data}}"]),
            "when" => self.dice.one(&["{{now}}", "{{row.when}}"]),
            "string" => {
                return self
                    .dice
                    .one(&[
                        "\"{{uuid}}\"",
                        "\"{{row.word}}\"",
                        "\"{{row.word}}{{row.word}}\"",
                        "{{random 0 9}}",
                        "\"{{seq}} of {{client}}: {{row.word}}, {{{{\"",
                        "\"é{{random -0.50 1.00}}\"",
                        "\"{{row.word}} {{uuid}}{{uuid}}{{uuid}} {{now rfc3339}}\"",
                    ])
                    .to_owned();
            }
            "float" | "double" => self.dice.one(&[
                "{{random -1.500 1.500}}",
                "{{random 0 3}}",
                "{{seq}}",
                "{{row.number}}",
                "{{now s}}",
            ]),
            "int64" | "sint64" | "sfixed64" => self.dice.one(&[
                "{{random -9223372036854775808 9223372036854775807}}",
                "{{random -2 2}}",
                "{{now}}",
                "{{now ns}}",
                "{{row.number}}",
            ]),
            "int32" | "sint32" | "sfixed32" => self.dice.one(&[
                "{{random -2147483648 2147483647}}",
                "{{random -1 1}}",
                "{{row.number}}",
                "{{client}}",
            ]),
            _ => self.dice.one(&[
                "{{seq}}",
                "{{random 0 1}}",
                "{{message}}",
                "{{row.number}}",
                "{{ random 100 70000 }}",
            ]),
        };
        match self.dice.below(2) {
            0 => format!("\"{template}\""),
            _ => template.to_owned(),
        }
    }
}

fn proto_name(kind: &str) -> String {
    match kind {
        "when" => "google.protobuf.Timestamp".to_owned(),
        other => other.to_owned(),
    }
}

fn constant(kind: &str, choice: u64) -> &'static str {
    match (kind, choice) {
        ("bool", 0) => "false",
        ("bool", _) => "true",
        ("Colour", 0) => "\"GREY\"",
        ("Colour", _) => "\"RED\"",
        ("string", 0) => "\"\"",
        ("string", _) => "\"constant\"",
        ("bytes", _) => "\"AAEC\"",
        ("when", _) => "\"2026-11-21T09:30:00Z\"",
        (_, 0) => "0",
        (_, _) => "77",
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// For random schemas and positions, patched bytes equal those of encoding the whole message.
    #[test]
    fn patched_message_equals_full_encoding(seed in any::<u64>(), number in 0u64..100_000) {
        let mut shape = SchemaGenerator {
            dice: Dice(seed),
            source: "syntax = \"proto3\";\nimport \"google/protobuf/timestamp.proto\";\n\
                     enum Colour { GREY = 0; RED = 1; }\n".to_owned(),
            messages: 0,
        };
        let (top, json) = shape.message(0);
        let source = format!(
            "{}service S {{ rpc Call({top}) returns ({top}); rpc Up(stream {top}) returns ({top}); }}\n",
            shape.source
        );
        let schema = schema(&source);
        let method = schema.method("S/Call").unwrap();
        let rows = rows();
        let requests = schema
            .encode_all(&method, &json, Some(&rows))
            .unwrap_or_else(|e| panic!("{e}: {json}\n{source}"));
        if requests.varying.is_empty() {
            prop_assert!(!json.contains("{{row") && !json.contains("{{seq"), "{json}");
            return Ok(());
        }
        let order = shape.dice.one(&[RowOrder::RoundRobin, RowOrder::Random]);
        let variation = VariationSettings::new(seed, 1 + shape.dice.below(9) as u32, rows.count(), order);
        let varied = TemplateMessage::parse(&schema, &method, &quote_unquoted_fields(&json), &mut 0, Some(&rows)).unwrap();
        for (number, unix_ns) in [(0, 0), (1, 1), (number, 1_795_253_400_250_000_000), (number + 1, 5_000_000_000)] {
            let moment = variation.render_context(number, (number % 7) as u32, unix_ns);
            let filled = varied.fill(&moment).to_string();
            let afresh = schema.encode(&method, &filled).unwrap_or_else(|e| panic!("{e}: {filled}"));
            let mut patched = b"before".to_vec();
            let render = &requests.varying[0];
            render.render(&moment, &mut patched);
            prop_assert_eq!(&patched[6..], &afresh[..], "{}\n{}\n{}", source, json, filled);
            prop_assert!(afresh.len() <= render.max_bytes());
        }
        // The same holds for a list of messages of a stream, over which slots are numbered consecutively.
        let up = schema.method("S/Up").unwrap();
        let two = schema.encode_all(&up, &format!("[{json}, {json}]"), Some(&rows)).unwrap();
        prop_assert_eq!((two.messages.len(), two.varying.len()), (2, 2));
    }
}

const ORDER: &str = r#"
syntax = "proto3";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/any.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/timestamp.proto";
message Order {
  string text = 1; int32 small = 2; uint32 count = 3; bool flag = 4; bytes data = 5;
  google.protobuf.Int64Value maybe = 6; google.protobuf.StringValue note = 7;
  google.protobuf.Struct any = 8; repeated int32 list = 9; repeated string words = 10;
  map<string, int32> map = 11; Order inside = 12; float real = 13;
  oneof one { int32 a = 14; int32 b = 15; }
  google.protobuf.Duration span = 16; google.protobuf.Any held = 17;
  google.protobuf.Value value = 18; google.protobuf.ListValue values = 19;
  map<bool, Order> by_flag = 20; map<sint64, string> by_number = 21;
  google.protobuf.Timestamp at = 22; repeated google.protobuf.Value each = 23;
}
service S { rpc Call(Order) returns (Order); }
"#;

fn rendered(json: &str, number: u64) -> Value {
    let schema = schema(ORDER);
    let method = schema.method("S/Call").unwrap();
    let rows = Rows::parse(
        "r",
        "{\"list\": [1, 0, 300], \"map\": {\"x\": 5}, \"inside\": {\"text\": \"deep\"}}",
    )
    .unwrap();
    let requests = schema.encode_all(&method, json, Some(&rows)).unwrap();
    let variation = VariationSettings::new(1, 1, 1, RowOrder::RoundRobin);
    let mut bytes = Vec::new();
    requests.varying[0].render(&variation.render_context(number, 0, 0), &mut bytes);
    let text = schema.decode(&method, &bytes).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn wrappers_and_lists_vary_and_counters_wrap() {
    let value = rendered(r#"{"maybe": {{seq}}, "note": "n{{seq}}"}"#, 0);
    assert_eq!(
        (&value["maybe"], &value["note"]),
        (&"0".into(), &"n0".into())
    );
    let value = rendered(
        r#"{"list": "{{row.list}}", "map": {{row.map}}, "inside": {{row.inside}}}"#,
        0,
    );
    assert_eq!(value["list"], serde_json::json!([1, 0, 300]));
    assert_eq!(value["map"]["x"], 5);
    assert_eq!(value["inside"]["text"], "deep");
    // Counters wrap around at their type's maximum.
    let value = rendered(r#"{"small": {{seq}}, "count": {{seq}}}"#, (1 << 32) + 5);
    assert_eq!((&value["small"], &value["count"]), (&5.into(), &5.into()));
    // The length prefix takes more bytes than usual.
    let value = rendered(
        &format!(
            r#"{{"inside": {{"inside": {{"text": "{}{{{{seq}}}}"}}}}}}"#,
            "x".repeat(115)
        ),
        u64::MAX >> 1,
    );
    assert_eq!(
        value["inside"]["inside"]["text"].as_str().map(str::len),
        Some(134)
    );
}

#[test]
fn invalid_template_error_names_field() {
    let schema = schema(ORDER);
    let method = schema.method("S/Call").unwrap();
    let rows = Rows::parse("r.csv", "n,w\n1,2\nx,y\n").unwrap();
    for (json, problem) in [
        (
            r#"{"small": "{{uuid}}"}"#,
            "field \"small\": this template is not a number, but the field is int32",
        ),
        (r#"{"small": "1{{seq}}"}"#, "field \"small\""),
        (
            r#"{"small": {{random 0 3000000000}}}"#,
            "from -2147483648 to 2147483647",
        ),
        (r#"{"count": {{random -1 1}}}"#, "from 0 to 4294967295"),
        (r#"{"small": {{random 0.0 1.0}}}"#, "field \"small\""),
        (r#"{"count": {{now}}}"#, "field \"count\""),
        (r#"{"flag": {{seq}}}"#, "field \"flag\": the field is bool"),
        (r#"{"data": "{{seq}}"}"#, "field \"data\""),
        (r#"{"span": "{{seq}}m"}"#, "such as \"{{random 1 5}}s\""),
        (r#"{"span": "{{random 0 999999999999}}s"}"#, "315576000000"),
        (r#"{"span": {"seconds": {{seq}}}}"#, "field \"span\""),
        (
            r#"{"held": {"@type": "a/Nothing", "x": "{{seq}}"}}"#,
            "field \"held\": \"@type\" has to name a type",
        ),
        (
            r#"{"held": {"@type": "a/Order", "txt": "{{seq}}"}}"#,
            "field \"held.txt\"",
        ),
        (r#"{"list": {{seq}}}"#, "field \"list\""),
        (r#"{"list": ["{{uuid}}"]}"#, "field \"list[0]\""),
        (r#"{"{{seq}}": 1}"#, "no field \"0\""),
        (r#"{"inside": {"{{uuid}}": 1}}"#, "no field \"inside."),
        (
            r#"[{"text": "{{seq}}"}, {"txt": 1}]"#,
            "message 2 of the list: ",
        ),
        ("[]", "an empty list of messages"),
        (r#"{"inside": {{seq}}}"#, "field \"inside\""),
        (
            r#"{"inside": {"txt": "{{seq}}"}}"#,
            "no field \"inside.txt\"; did you mean text?",
        ),
        (
            r#"{"text": "{{sec}}"}"#,
            "field \"text\": `{{sec}}` is unknown: did you mean seq?",
        ),
        (r#"{"small": "{{row.n}}"}"#, "r.csv, row 2, column \"n\""),
        (
            r#"{"words": ["{{row.x}}"]}"#,
            "field \"words[0]\": `{{row.x}}`: r.csv has no such column",
        ),
        (r#"{"a": {{seq}}, "b": 1}"#, "one"),
        (r#"{{seq}}"#, "message of Order"),
        (r#"{"text": {{seq}"#, "not valid JSON"),
    ] {
        let encoded = schema.encode_all(&method, json, Some(&rows)).map(|_| ());
        let reported = encoded.expect_err(json).to_string();
        assert!(reported.contains(problem), "{json}: {reported}");
    }
}

#[test]
fn escaped_braces_are_literal_text() {
    let schema = schema(ORDER);
    let method = schema.method("S/Call").unwrap();
    let requests = schema
        .encode_all(&method, r#"{"text": "{{{{seq}}"}"#, None)
        .unwrap();
    assert!(requests.varying.is_empty());
    assert_eq!(requests.messages[0], b"\x0a\x07{{seq}}");
}

/// Returns rows with every kind of JSON value.
fn open_rows() -> Rows {
    let rows = [
        r#"{"text": "a", "small": "7", "free": "7", "flag": "1", "inside": {"flag": true}}"#,
        r#"{"text": "", "small": 0, "free": null, "map": {"x": 1}}"#,
        r#"{"text": "c", "small": -1, "free": {"a": [1, "b"]}, "list": [1, 2]}"#,
        r#"{"text": "d", "small": 1, "free": "no JSON", "any": {"x": [null]}}"#,
    ];
    Rows::parse("r", &rows.join("\n")).unwrap()
}

#[test]
fn varying_well_known_types_encode_correctly() {
    let schema = schema(ORDER);
    let method = schema.method("S/Call").unwrap();
    let rows = open_rows();
    for json in [
        r#"{"any": {"n": {{seq}}, "s": "n{{seq}}", "": "{{uuid}}", "c": [1, {{random -5 5}}, {"d": {{random 0.00 1.00}}}]}}"#,
        r#"{"any": {"{{uuid}}": true, "none": null, "list": [null, {{seq}}, {"none": null, "n": {{seq}}}]}}"#,
        r#"{"any": {"k": {{row.free}}, "l": [{{row.free}}, "x{{row.text}}"]}}"#,
        r#"{"value": {{seq}}, "values": [{{seq}}, "{{now rfc3339}}", null, [[{{client}}]]]}"#,
        r#"{"value": "s{{seq}}"}"#,
        r#"{"value": {{row.free}}}"#,
        r#"{"value": {"a": {"b": {{seq}}}}}"#,
        r#"{"each": [{{seq}}, "x{{seq}}", {{row.free}}, {"a": {{seq}}}]}"#,
        r#"{"span": "{{random -3.000000001 3.000000001}}s"}"#,
        r#"{"span": "{{seq}}s"}"#,
        r#"{"span": "{{random 0.0 1.0}}s", "at": "{{now}}"}"#,
        r#"{"held": {"@type": "type.googleapis.com/Order", "text": "{{uuid}}", "small": {{seq}}}}"#,
        r#"{"held": {"@type": "type.googleapis.com/google.protobuf.Duration", "value": "{{random 1 9}}s"}}"#,
        r#"{"held": {"@type": "type.googleapis.com/google.protobuf.Struct", "value": {"a": {{seq}}}}}"#,
        r#"{"map": {"{{uuid}}": {{random 1 5}}}}"#,
        r#"{"map": {"{{row.text}}": 0}}"#,
        r#"{"byFlag": {"{{random 0 1}}": {"text": "{{seq}}"}}}"#,
        r#"{"byNumber": {"{{random -9 9}}": "{{seq}}"}}"#,
        r#"{"byNumber": { {{seq}}: "x" }}"#,
        "{{row}}",
        "{{ row }}",
        r#"{"inside": {{row}}}"#,
    ] {
        let rows = match json.contains("row}}") || json.contains("row }}") {
            // These rows are objects, as a message needs them.
            true => {
                let text: Vec<String> = open_rows()
                    .whole_rows()
                    .values()
                    .map(|row| {
                        let mut row: Map<String, Value> = serde_json::from_str(&row).unwrap();
                        if let Some(free) = row.remove("free") {
                            row.insert("value".to_owned(), free);
                        }
                        Value::Object(row).to_string()
                    })
                    .collect();
                &Rows::parse("r", &text.join("\n")).unwrap()
            }
            false => &rows,
        };
        let requests = schema
            .encode_all(&method, json, Some(rows))
            .unwrap_or_else(|e| panic!("{json}: {e}"));
        let varied = TemplateMessage::parse(
            &schema,
            &method,
            &quote_unquoted_fields(json),
            &mut 0,
            Some(rows),
        )
        .unwrap();
        let variation = VariationSettings::new(3, 2, rows.count(), RowOrder::RoundRobin);
        for number in 0..40 {
            let moment = variation.render_context(number, 0, 1_795_253_400_250_000_000);
            let filled = varied.fill(&moment).to_string();
            let afresh = schema.encode(&method, &filled);
            let afresh = afresh.unwrap_or_else(|e| panic!("{json}: {e}: {filled}"));
            let mut patched = Vec::new();
            requests.varying[0].render(&moment, &mut patched);
            // Maps have no order, so the decoded messages and the sizes are compared.
            let decode = |bytes: &[u8]| schema.decode(&method, bytes).unwrap();
            let sorted = |text: String| serde_json::from_str::<Value>(&text).unwrap();
            assert_eq!(
                sorted(decode(&patched)),
                sorted(decode(&afresh)),
                "{json}: {filled}"
            );
            assert_eq!(patched.len(), afresh.len(), "{json}: {filled}");
            assert!(patched.len() <= requests.varying[0].max_bytes(), "{json}");
        }
    }
    let bad = Rows::parse("r", "{\"text\": \"a\"}\n{\"txt\": 1}").unwrap();
    let error = schema
        .encode_all(&method, "{{row}}", Some(&bad))
        .unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("r, row 2") && error.contains("did you mean text?"),
        "{error}"
    );
}

#[test]
fn calls_cycle_through_message_list() {
    let schema = schema(ORDER);
    let method = schema.method("S/Call").unwrap();
    for list in [
        r#"[{"small": 1}, {"small": 2, "text": "{{seq}}"}, {}]"#,
        "{\"small\": 1}\n{\"small\": 2, \"text\": \"{{seq}}\"}\n\n{}\n",
        "{\"small\": 1}\r\n{\"small\": 2, \"text\": {{seq}}} {}",
    ] {
        let requests = schema.encode_all(&method, list, None).unwrap();
        assert_eq!(requests.messages, [[16, 1]]);
        let variation = VariationSettings::new(1, 1, 0, RowOrder::RoundRobin);
        let bytes = |number| {
            let mut bytes = Vec::new();
            requests.varying[0].render(&variation.render_context(number, 0, 0), &mut bytes);
            bytes
        };
        assert_eq!(bytes(0), [16, 1]);
        assert_eq!(bytes(1), [10, 1, b'1', 16, 2]);
        assert_eq!(bytes(2), [0; 0]);
        assert_eq!(bytes(3), [16, 1]);
        assert_eq!(bytes(4), [10, 1, b'4', 16, 2]);
    }
    // A list of one message is the same for every call.
    let one = schema
        .encode_all(&method, r#"[{"small": 1}]"#, None)
        .unwrap();
    assert!(one.varying.is_empty());
}
