use std::fmt::Write as _;

use proptest::prelude::*;
use protox::Compiler;
use protox::file::{File, FileResolver};

use super::*;

/// One proto, by its text.
struct One(String);

impl FileResolver for One {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        match name {
            "a.proto" => File::from_source(name, &self.0),
            _ => protox::file::GoogleFileResolver::new().open_file(name),
        }
    }
}

fn schema(source: &str) -> Schema {
    let mut compiler = Compiler::with_file_resolver(One(source.to_owned()));
    compiler
        .open_file("a.proto")
        .unwrap_or_else(|e| panic!("{e:?}: {source}"));
    Schema {
        pool: compiler.descriptor_pool(),
        source: "a.proto".to_owned(),
    }
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

/// Choices, all from one number.
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
struct Shape {
    dice: Dice,
    /// Definitions of messages.
    source: String,
    messages: u32,
}

const SCALARS: [&str; 17] = [
    "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32",
    "sfixed64", "float", "double", "bool", "string", "bytes", "Colour", "when",
];

impl Shape {
    /// A message type of its own; its name, and JSON of it.
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
                // The order in the text is not that of the numbers.
                let at = self.dice.below(json.len() as u64 + 1) as usize;
                json.insert(at, format!("\"f{i}\": {value}"));
            }
        }
        let _ = writeln!(self.source, "message {name} {{\n{fields}}}");
        (name, format!("{{{}}}", json.join(", ")))
    }

    /// Type, label and JSON; a map is all type.
    fn field(&mut self, depth: u32) -> (String, &'static str, Option<String>) {
        let nested = depth < 3 && self.dice.below(3) == 0;
        let (kind, sample) = if nested {
            self.message(depth + 1)
        } else {
            let kind = self.dice.one(&SCALARS);
            (kind.to_owned(), String::new())
        };
        let value = |shape: &mut Shape| match nested {
            true => sample.clone(),
            false => shape.value(&kind),
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

    /// JSON of a scalar, constant or a template, bare or in quotes.
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

    /// Random schemas, random positions: patched bytes are those of encoding afresh.
    #[test]
    fn patched_is_encoded_afresh(seed in any::<u64>(), number in 0u64..100_000) {
        let mut shape = Shape {
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
        let order = shape.dice.one(&[Order::RoundRobin, Order::Random]);
        let variation = Variation::new(seed, 1 + shape.dice.below(9) as u32, rows.count(), order);
        let varied = Varied::parse(&schema, &method, &quote_bare(&json), &mut 0, Some(&rows)).unwrap();
        for (number, unix_ns) in [(0, 0), (1, 1), (number, 1_795_253_400_250_000_000), (number + 1, 5_000_000_000)] {
            let moment = variation.moment(number, (number % 7) as u32, unix_ns);
            let filled = varied.filled(&moment).to_string();
            let afresh = schema.encode(&method, &filled).unwrap_or_else(|e| panic!("{e}: {filled}"));
            let mut patched = b"before".to_vec();
            let render = &requests.varying[0];
            render.render(&moment, &mut patched);
            prop_assert_eq!(&patched[6..], &afresh[..], "{}\n{}\n{}", source, json, filled);
            prop_assert!(afresh.len() <= render.most());
        }
        // The same in a list of messages for a stream, whose slots go on counting.
        let up = schema.method("S/Up").unwrap();
        let two = schema.encode_all(&up, &format!("[{json}, {json}]"), Some(&rows)).unwrap();
        prop_assert_eq!((two.messages.len(), two.varying.len()), (2, 2));
    }
}

const ORDER: &str = r#"
syntax = "proto3";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
message Order {
  string text = 1; int32 small = 2; uint32 count = 3; bool flag = 4; bytes data = 5;
  google.protobuf.Int64Value maybe = 6; google.protobuf.StringValue note = 7;
  google.protobuf.Struct any = 8; repeated int32 list = 9; repeated string words = 10;
  map<string, int32> map = 11; Order inside = 12; float real = 13;
  oneof one { int32 a = 14; int32 b = 15; }
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
    let variation = Variation::new(1, 1, 1, Order::RoundRobin);
    let mut bytes = Vec::new();
    requests.varying[0].render(&variation.moment(number, 0, 0), &mut bytes);
    let text = schema.decode(&method, &bytes).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn wrappers_whole_lists_and_ends_of_types() {
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
    // Counters begin again where their type ends.
    let value = rendered(r#"{"small": {{seq}}, "count": {{seq}}}"#, (1 << 32) + 5);
    assert_eq!((&value["small"], &value["count"]), (&5.into(), &5.into()));
    // A length that outgrows its usual width.
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
fn what_can_not_vary_is_told_with_its_place() {
    let schema = schema(ORDER);
    let method = schema.method("S/Call").unwrap();
    let rows = Rows::parse("r.csv", "n,w\n1,2\nx,y\n").unwrap();
    for (json, problem) in [
        (
            r#"{"small": "{{uuid}}"}"#,
            "field \"small\": this template is no number, and the field is int32",
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
        (
            r#"{"any": {"x": "{{seq}}"}}"#,
            "nothing in a google.protobuf.Struct can vary",
        ),
        (r#"{"list": {{seq}}}"#, "field \"list\""),
        (r#"{"list": ["{{uuid}}"]}"#, "field \"list[0]\""),
        (r#"{"map": {"{{seq}}": 1}}"#, "a key can't vary"),
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
        let told = schema.encode_all(&method, json, Some(&rows)).map(|_| ());
        let told = told.expect_err(json).to_string();
        assert!(told.contains(problem), "{json}: {told}");
    }
}

#[test]
fn two_plain_braces_are_no_template() {
    let schema = schema(ORDER);
    let method = schema.method("S/Call").unwrap();
    let requests = schema
        .encode_all(&method, r#"{"text": "{{{{seq}}"}"#, None)
        .unwrap();
    assert!(requests.varying.is_empty());
    assert_eq!(requests.messages[0], b"\x0a\x07{{seq}}");
}
