//! Tests of `traceparent = true` in every section.

use std::any::Any;
use std::cell::RefCell;

use plimsoll_protocols::grpc::encoding::ReflectionQuery;

use super::*;

/// Every protocol either sends the ids of W3C Trace Context, or says which protocols do.
#[test]
fn traceparent_is_supported_or_rejected() {
    register_protocols();
    let plan = |target: &str, call: &str| {
        format!(
            "target = \"{target}\"\ntraceparent = true\n{call}\n[load]\nclients = 1\nduration = \"1s\"\n"
        )
    };
    let score =
        "[call.grpc]\nmethod = \"score.ScoreService/GetScore\"\nmessage = { json = \"[]\" }";
    for (target, call) in [
        ("grpc://a:1", score),
        ("http://a:1", "[call.http]"),
        ("http://a:1", "[call.http]\nwebsocket = {}\nbody = \"x\""),
        ("http://a:1", "[call.fetch]"),
        ("session://a:1", "[call.session]\nsocket = \"ws://a:1\""),
    ] {
        let text = plan(target, call);
        let typed = spec::read(&text).expect("readable");
        let resolved = spec::resolve(&typed, &FileContext).expect("right");
        let (_, varying) = resolved.call.header_fields();
        let names: Vec<&str> = varying.iter().map(|field| &*field.name).collect();
        assert_eq!(names, ["traceparent"], "{call}");
        let saved = typed.with_defaults(&resolved).to_toml().expect("writable");
        let again =
            spec::resolve(&spec::read(&saved).expect("readable"), &FileContext).expect("right");
        assert_eq!(again.call, resolved.call, "{saved}");
        let without = text.replace("traceparent = true", "traceparent = false");
        let without = spec::resolve(&spec::read(&without).expect("readable"), &FileContext);
        assert!(
            without.expect("right").call.header_fields().1.is_empty(),
            "{call}"
        );
    }
    let others = "only for [call.grpc], [call.http], [call.session] and [call.fetch]";
    for (target, call, name) in [
        ("sofa://a:1", "[call.bolt]", "bolt"),
        ("tcp://a:1", "[call.hold]", "hold"),
    ] {
        let found = problems(&plan(target, call)).join("\n");
        let expected = format!("`traceparent`: {others}: requests of [call.{name}]");
        assert!(found.contains(&expected), "{found}");
    }
    for (target, call, table) in [
        ("grpc://a:1", score, "call.grpc.metadata"),
        ("http://a:1", "[call.http]", "call.http.headers"),
        ("session://a:1", "[call.session]", "call.session.headers"),
    ] {
        for value in ["x", "{{seq}}"] {
            let own = format!("{call}\n[{table}]\nTraceparent = \"{value}\"");
            let found = problems(&plan(target, &own)).join("\n");
            let expected =
                format!("`{table}.traceparent`: can't be combined with traceparent = true");
            assert!(found.contains(&expected), "{found}");
        }
    }
}

/// An environment that records the metadata of queries to a server.
#[derive(Default)]
struct QueryRecorder(RefCell<Vec<Vec<(String, String)>>>);

impl ResolveContext for QueryRecorder {
    fn env_variable(&self, name: &str) -> Option<String> {
        FileContext.env_variable(name)
    }
    fn read(&self, path: &Path) -> io::Result<String> {
        FileContext.read(path)
    }
    fn read_bytes(&self, path: &Path) -> io::Result<Vec<u8>> {
        FileContext.read_bytes(path)
    }
    fn answer_protocol_query(&self, question: &mut dyn Any) {
        let question = question
            .downcast_ref::<ReflectionQuery>()
            .expect("a question");
        self.0.borrow_mut().push(question.metadata.clone());
    }
}

/// Each query before a load has a different trace id, and the plan's metadata unchanged.
#[test]
fn reflection_queries_have_distinct_traces() {
    register_protocols();
    let text = "target = \"grpc://a:1\"\ntraceparent = true\n[call.grpc]\nmethod = \"own.Service/Get\"\nreflection = true\n\
                [call.grpc.metadata]\nx-tenant = \"7\"\nx-call = \"{{seq}}\"\n[load]\nclients = 1\nduration = \"1s\"\n";
    let typed = spec::read(text).expect("readable");
    let asked = QueryRecorder::default();
    for _ in 0..2 {
        assert!(spec::resolve(&typed, &asked).is_err(), "nobody answers");
    }
    let questions = asked.0.take();
    let value = |question: usize, name: &str| {
        let mut entries = questions[question].iter();
        let found = entries.find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone()).expect("metadata")
    };
    for name in ["x-tenant", "x-call"] {
        assert_eq!(value(0, name), value(1, name));
    }
    let [one, other] = [0, 1].map(|question| value(question, "traceparent"));
    assert_ne!(one[3..35], other[3..35], "{one} {other}");
}
