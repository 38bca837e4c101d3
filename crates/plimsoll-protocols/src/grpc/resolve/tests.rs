use std::io;
use std::path::Path;
use std::time::Duration;

use plimsoll_model::Plan;
use plimsoll_model::spec::{plan_secrets, read, resolve, set_spans};

use super::*;
use crate::registry::register_protocols;

struct TestContext;

impl ResolveContext for TestContext {
    fn env_variable(&self, name: &str) -> Option<String> {
        match name {
            "TOKEN" | "PLIMSOLL_METADATA_AUTHORIZATION" => Some("Bearer hush".into()),
            "BRACES" => Some("hush{{".into()),
            "VARYING" => Some("Bearer {{row.name}}".into()),
            _ => None,
        }
    }
    fn read_bytes(&self, path: &Path) -> io::Result<Vec<u8>> {
        match path.to_str() {
            Some("one.bin") => Ok(vec![10, 1, 65]),
            Some("many.bin") => Ok(vec![3, 10, 1, 66, 0]),
            Some("cut.bin") => Ok(vec![2, 8]),
            _ => Err(io::Error::from(io::ErrorKind::NotFound)),
        }
    }
    fn read(&self, path: &Path) -> io::Result<String> {
        match path.to_str() {
            Some("score.json") => Ok("{\"json\": \"5\"}\n".into()),
            Some("users.csv") => Ok("name,age\nann,5\nbob,7\ncy,9\n".into()),
            Some("odd.csv") => {
                Ok("plain,lines,blank,token\na,b,c,AQID\na,\"b\nc\",\" c\",AQ*D\n".into())
            }
            _ => Err(io::Error::from(io::ErrorKind::NotFound)),
        }
    }
}

const ECHO: &str = "grpc.examples.echo.Echo";
const CALL: &str = "[call.grpc]\nmethod = \"score.ScoreService/GetScore\"\n";

fn resolved(text: &str) -> Result<Plan, Vec<Problem>> {
    register_protocols();
    resolve(&read(text).expect("readable"), &TestContext)
}

fn plan(text: &str) -> Plan {
    resolved(text).unwrap_or_else(|problems| panic!("{problems:?}"))
}

fn grpc_call_of(plan: &Plan) -> GrpcCall {
    plan.call.downcast_ref::<GrpcCall>().expect("gRPC").clone()
}

fn wrong(text: &str) -> Vec<String> {
    let mut problems = resolved(text).expect_err("a wrong plan");
    set_spans(text, &mut problems);
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn stream_settings_resolve() {
    let plan = |lines: &str| {
        let text = format!(
            "target = \"grpc://h:1\"\n[call.grpc]\nmethod = \"{ECHO}/BidirectionalStreamingEcho\"\n{lines}\n[load]\nclients = 1\ncalls = 1\n"
        );
        let call = grpc_call_of(&plan(&text));
        call.stream.unwrap()
    };
    assert_eq!(
        plan("stream_duration = \"30s\"").duration,
        Some(Duration::from_secs(30))
    );
    let stream = plan("messages = 7\npace = \"20ms\"\nexpect = 7\ncancel_after = 0");
    assert_eq!(
        (stream.count, stream.expect, stream.cancel_after),
        (7, Some(7), Some(0))
    );
    assert_eq!(stream.pace, StreamPace::Every(Duration::from_millis(20)));
    assert_eq!(plan("pace = \"answers\"").pace, StreamPace::Answers);
    let stream = plan("");
    assert_eq!(
        (stream.count, stream.pace, stream.expect),
        (1, StreamPace::None, None)
    );

    let problems = |method: &str, lines: &str| {
        wrong(&format!(
            "target = \"grpc://h:1\"\n[call.grpc]\nmethod = \"{ECHO}/{method}\"\n{lines}\n[load]\nclients = 1\ncalls = 1\n"
        ))
        .join("; ")
    };
    assert!(
        problems("UnaryEcho", "messages = 2")
            .contains("`call.grpc.messages`: only for streams of requests, but grpc.examples.echo.Echo/UnaryEcho is unary")
    );
    assert!(problems("UnaryEcho", "cancel_after = 2").contains("call.grpc.cancel_after"));
    assert!(
        problems("UnaryEcho", "stream_duration = \"1s\"").contains("call.grpc.stream_duration")
    );
    assert!(
        problems(
            "BidirectionalStreamingEcho",
            "stream_duration = \"30s\"\ndeadline = \"30s\""
        )
        .contains("streams of 30s would exceed their deadline")
    );
    assert!(
        problems("ServerStreamingEcho", "pace = \"1s\"")
            .contains("ServerStreamingEcho is server streaming")
    );
    let wrong = read("[call.grpc]\npace = \"slowly\"").unwrap_err();
    assert_eq!(wrong[0].key, "call.grpc.pace");
    assert!(wrong[0].message.contains("or \"answers\""), "{}", wrong[0]);
}

#[test]
fn messages_and_metadata_resolve_or_are_rejected() {
    let with = |call: &str| {
        format!("target = \"grpc://a:1\"\n[load]\nrate = \"1/s\"\ncalls = 1\n{CALL}{call}\n")
    };
    let call = grpc_call_of(&plan(&with("message = { json = \"[0.1, 0.2]\" }")));
    assert_eq!(call.message, b"\x0a\x0a[0.1, 0.2]");
    let call = grpc_call_of(&plan(&with(
        "message_file = \"score.json\"\n[call.grpc.metadata]\nX-Id = \"7\"\nauthorization = { env = \"TOKEN\" }",
    )));
    assert_eq!(call.message, b"\x0a\x015");
    assert_eq!(
        call.metadata,
        [
            ("x-id".into(), "7".into()),
            ("authorization".into(), "Bearer hush".into())
        ]
    );
    for (typed, expected) in [
        (
            "message = \"{}\"\nmessage_file = \"score.json\"",
            "`call.grpc.message_file`: can't be combined",
        ),
        (
            "message_file = \"gone.json\"",
            "`call.grpc.message_file`: can't read gone.json",
        ),
        (
            "message = { json = \"{{sec}}\" }",
            "`call.grpc.message`: message of score.JsonVector: field \"json\": `{{sec}}` is unknown: did you mean seq?",
        ),
        (
            "metadata = { x-id = \"{{uid}}\" }",
            "`call.grpc.metadata.x-id`: `{{uid}}` is unknown: did you mean uuid?",
        ),
        (
            "metadata = { x-id = \"{{row.name}}\" }",
            "`call.grpc.metadata.x-id`: `{{row.name}}` needs rows",
        ),
        (
            "metadata = { x-id = \"{{message}}\" }",
            "`call.grpc.metadata.x-id`: {{message}} has no value here: metadata are sent before",
        ),
        (
            "metadata = { x-id = \"é{{seq}}\" }",
            "`call.grpc.metadata.x-id`: not a metadata value",
        ),
        (
            "metadata = { x-id = \"{{seq}} \" }",
            "`call.grpc.metadata.x-id`: not a metadata value",
        ),
        (
            "metadata = { id-bin = \"{{seq}}\" }",
            "`call.grpc.metadata.id-bin`: the value of a name that ends in -bin is one field alone",
        ),
        (
            "metadata = { authorization = { env = \"BRACES\" } }",
            "`call.grpc.metadata.authorization`: its braces contain no field",
        ),
        (
            "metadata = { user-agent = \"me\" }",
            "`call.grpc.metadata.user-agent`: has a key of its own",
        ),
        (
            "user_agent = \" me\"",
            "`call.grpc.user_agent`: not a field value",
        ),
        (
            "compression = \"zstd\"",
            "`call.grpc.compression`: `zstd` is unknown",
        ),
        (
            "metadata = { \"grpc-timeout\" = \"1S\" }",
            "`call.grpc.metadata.grpc-timeout`: is the call's deadline: write load.deadline",
        ),
        (
            "metadata = { \"a b\" = \"1\" }",
            "`call.grpc.metadata.a b`: not a metadata name",
        ),
        (
            "metadata = { x = \"é\" }",
            "`call.grpc.metadata.x`: not a metadata value",
        ),
        (
            "metadata = { x-bin = \"%\" }",
            "`call.grpc.metadata.x-bin`: not base64",
        ),
        (
            "metadata = { x = { env = \"NOWHERE\" } }",
            "`call.grpc.metadata.x`: the environment variable NOWHERE is not set",
        ),
        (
            "import_path = [\"p\"]",
            "`call.grpc.import_path`: used only with",
        ),
        (
            "max_message = \"0B\"",
            "`call.grpc.max_message`: out of range",
        ),
        ("deadline = \"0s\"", "`call.grpc.deadline`: a deadline of 0"),
    ] {
        let problems = wrong(&with(typed));
        assert_eq!(problems.len(), 1, "{typed}: {problems:?}");
        assert!(problems[0].starts_with(expected), "{typed}: {problems:?}");
    }
}

#[test]
fn messages_are_read_from_binary_files() {
    let with = |binary: &str| {
        format!(
            "target = \"grpc://a:1\"\n[load]\nrate = \"1/s\"\ncalls = 1\n[call.grpc]\nmethod = \"{ECHO}/ClientStreamingEcho\"\n{binary}\n"
        )
    };
    for (binary, messages) in [
        ("message_binary = \"one.bin\"", &[&[10, 1, 65][..]][..]),
        (
            "message_binary = { delimited = \"many.bin\" }",
            &[&[10, 1, 66], &[]],
        ),
        (
            "message_binary = [{ base64 = \"CgFD\" }, \"one.bin\", { file = \"one.bin\" }]",
            &[&[10, 1, 67], &[10, 1, 65], &[10, 1, 65]],
        ),
    ] {
        let text = with(binary);
        let first = plan(&text);
        let of = |plan: &Plan| grpc_call_of(plan).stream.unwrap().messages;
        assert_eq!(of(&first), messages, "{binary}");
        // The saved plan resolves without the files.
        let saved = read(&text)
            .unwrap()
            .with_defaults(&first)
            .to_toml()
            .unwrap();
        assert!(!saved.contains(".bin\""), "{saved}");
        assert_eq!(of(&plan(&saved)), messages, "{saved}");
    }
    for (binary, expected) in [
        (
            "message = \"{}\"\nmessage_binary = \"one.bin\"",
            "`call.grpc.message_binary`: can't be combined with call.grpc.message",
        ),
        (
            "message_binary = []",
            "`call.grpc.message_binary`: no message",
        ),
        (
            "message_binary = [\"gone.bin\", \"one.bin\"]",
            "`call.grpc.message_binary`: can't read gone.bin",
        ),
        (
            "message_binary = { delimited = \"cut.bin\" }",
            "`call.grpc.message_binary`: cut.bin, message 1: its length at byte 0 is 2, but 1 bytes",
        ),
        (
            "message_binary = { base64 = \"*\" }",
            "`call.grpc.message_binary`: message 1: not base64",
        ),
    ] {
        let problems = wrong(&with(binary));
        assert!(problems[0].starts_with(expected), "{problems:?}");
    }
}

#[test]
fn varying_metadata_is_validated_per_row() {
    let with = |metadata: &str, file: &str| {
        format!(
            "target = \"grpc://a:1\"\n[rows]\nfile = \"{file}\"\n[load]\nrate = \"1/s\"\ncalls = 1\n\
             {CALL}metadata = {{ {metadata} }}\n"
        )
    };
    let typed = "b = \"{{row.name}}-{{{{\", a-bin = \"{{uuid}}\", c = \"{{{{\", \
                 authorization = { env = \"VARYING\" }";
    let plan = plan(&with(typed, "users.csv"));
    let call = grpc_call_of(&plan);
    assert_eq!(call.metadata, [("c".to_owned(), "{{".to_owned())]);
    let varying = call.varying_metadata.as_ref().unwrap();
    let of_call = |number| {
        let mut values = varying.fields.iter().map(|field| {
            let mut value = Vec::new();
            let moment = varying.variation.render_context(number, 0, 0);
            field.write(&moment, &mut value);
            assert!(value.len() <= field.max_bytes());
            (field.name.as_str(), String::from_utf8(value).unwrap())
        });
        let [uuid, authorization, b] = [(); 3].map(|()| values.next().unwrap());
        assert_eq!((uuid.0, uuid.1.len()), ("a-bin", 22));
        assert_eq!((authorization.0, b.0), ("authorization", "b"));
        (authorization.1, b.1)
    };
    assert_eq!(of_call(1), ("Bearer bob".into(), "bob-{{".into()));
    assert_eq!(of_call(3), ("Bearer ann".into(), "ann-{{".into()));
    // Shards get the values as they were typed.
    let secrets = plan_secrets(&plan);
    let authorization = "PLIMSOLL_METADATA_AUTHORIZATION".to_owned();
    assert_eq!(secrets, [(authorization, "Bearer {{row.name}}".to_owned())]);

    for (metadata, expected) in [
        ("x = \"{{row.plain}}\"", None),
        (
            "x = \"{{row.lines}}\"",
            Some("odd.csv, row 2, column \"lines\": not a metadata value: use printable ASCII"),
        ),
        ("x = \"<{{row.blank}}>\"", None),
        (
            "x = \"{{row.blank}}\"",
            Some("odd.csv, row 2, column \"blank\": not a metadata value: use printable ASCII"),
        ),
        (
            "x-bin = \"{{row.token}}\"",
            Some("odd.csv, row 2, column \"token\": not base64"),
        ),
    ] {
        let text = with(metadata, "odd.csv");
        match expected {
            None => drop(self::plan(&text)),
            Some(expected) => {
                let problems = wrong(&text);
                assert_eq!(problems.len(), 1, "{problems:?}");
                assert!(problems[0].contains(expected), "{problems:?}");
            }
        }
    }
}

#[test]
fn rows_are_read_and_counted() {
    let text = |rows: &str, load: &str| {
        format!(
            "target = \"grpc://h:1\"\nseed = 3\n[rows]\n{rows}\n[call.grpc]\nmethod = \"{ECHO}/UnaryEcho\"\n\
             message = {{ message = \"{{{{row.name}}}} {{{{seq}}}}\" }}\n[load]\n{load}\n"
        )
    };
    let steady = "rate = \"10/s\"\ncalls = 3";
    let plan = plan(&text("file = \"users.csv\"\norder = \"unique\"", steady));
    let call = grpc_call_of(&plan);
    let varying = call.varying.unwrap();
    let mut message = Vec::new();
    varying.messages[0].render(&varying.variation.render_context(2, 0, 0), &mut message);
    assert_eq!(message, b"\x0a\x04cy 2");

    let file = "file = \"users.csv\"";
    for (rows, load, expected) in [
        ("", steady, "`rows.file`: missing"),
        (
            "file = \"gone.csv\"",
            steady,
            "`rows.file`: can't read gone.csv",
        ),
        (
            "file = \"score.json\"\norder = \"any\"",
            steady,
            "`rows.order`: `any` is unknown",
        ),
        (
            &format!("{file}\norder = \"unique\""),
            "rate = \"10/s\"\ncalls = 4",
            "the file has only 3 rows",
        ),
        (
            &format!("{file}\norder = \"unique\""),
            "rate = \"10/s\"\ncalls = 3\nwarmup = \"1s\"",
            "the file has only 3 rows",
        ),
        (
            &format!("{file}\norder = \"unique\""),
            "clients = 2\nduration = \"1s\"",
            "`rows.order`: \"unique\" needs a number of calls",
        ),
        (
            &format!("{file}\norder = \"unique\""),
            "clients = 2\ncalls = 4",
            "the file has only 3 rows",
        ),
    ] {
        let problems = wrong(&text(rows, load)).join("; ");
        assert!(problems.contains(expected), "{rows} {load}: {problems}");
    }
    let unused = text(file, steady).replace("{{row.name}}", "ann");
    assert!(
        wrong(&unused)
            .join("; ")
            .contains("`rows`: not used by any message or metadata")
    );
}

#[test]
fn compression_and_user_agent_resolve() {
    let text = &format!(
        "target = \"grpc://h:1\"\n[call.grpc]\nmethod = \"{ECHO}/UnaryEcho\"\ncompression = \"gzip\"\nuser_agent = \"shop/1\"\n[load]\nrate = \"1/s\"\ncalls = 1\n"
    );
    let call = grpc_call_of(&plan(text));
    assert_eq!(call.compression, Some(MessageCompression::Gzip));
    assert_eq!(call.user_agent.as_deref(), Some("shop/1"));
}
