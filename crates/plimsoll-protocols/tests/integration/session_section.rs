//! Tests of the `[call.session]` section of plans, and of the queries that it makes.

use std::io;
use std::path::Path;

use plimsoll_model::Plan;
use plimsoll_model::spec::{ResolveContext, Spec, read, resolve};
use plimsoll_protocols::registry::register_protocols;
use plimsoll_protocols::session::{QueryText, SessionCall, SessionSection};

/// An environment with a file of rows.
struct RowsContext;

impl ResolveContext for RowsContext {
    fn env_variable(&self, _: &str) -> Option<String> {
        None
    }
    fn read(&self, path: &Path) -> io::Result<String> {
        match path.to_str() {
            Some("users.csv") => Ok("name,age\nann,5\nbob,7\ncy,9\n".into()),
            _ => Err(io::Error::from(io::ErrorKind::NotFound)),
        }
    }
    fn read_bytes(&self, _: &Path) -> io::Result<Vec<u8>> {
        Err(io::Error::from(io::ErrorKind::NotFound))
    }
}

fn plan(text: &str) -> Plan {
    register_protocols();
    resolve(&read(text).expect("readable"), &RowsContext).expect("right")
}

fn plan_problems(text: &str) -> Vec<String> {
    register_protocols();
    let problems = resolve(&read(text).expect("readable"), &RowsContext).expect_err("a wrong plan");
    problems.iter().map(ToString::to_string).collect()
}

fn text(session: &str, load: &str) -> String {
    format!(
        "target = \"session://h:1\"\nseed = 3\n{load}\n[call.session]\nqueries = 2\n{session}\n"
    )
}

fn query(session: &str, load: &str) -> QueryText {
    let plan = plan(&text(session, load));
    let call: &SessionCall = plan.call.downcast_ref().expect("sessions");
    call.query.clone()
}

const CLIENTS: &str = "[load]\nclients = 3";
const ROWS: &str = "[rows]\nfile = \"users.csv\"";

#[test]
fn query_text_is_json_escaped() {
    let asked = |query: &QueryText| -> String {
        let body: serde_json::Value = serde_json::from_slice(&query.body).unwrap();
        assert_eq!(body.as_object().unwrap().len(), 1);
        body["query"].as_str().unwrap().to_owned()
    };
    assert!(
        !asked(&query("", CLIENTS)).is_empty(),
        "there is one without a key"
    );
    let same = query(r#"query = 'a "b" \ {{{{seq}}'"#, CLIENTS);
    assert_eq!(asked(&same), r#"a "b" \ {{seq}}"#);
    assert_eq!(same.varying, None);

    let varies = r#"query = 'a "{{row.name}}" {{seq}} {{client}} {{message}}'"#;
    let varying = query(varies, &format!("{ROWS}\n{CLIENTS}"));
    assert_eq!(asked(&varying), r#"a "ann" 0 0 0"#);
    let rendered = |number: u64, in_session: u32| {
        let varying = varying.varying.as_ref().unwrap();
        let moment = varying.variation.render_context(number, in_session, 0);
        let mut body = Vec::new();
        varying.messages[0].render(&moment, &mut body);
        assert!(body.len() <= varying.messages[0].max_bytes());
        asked(&QueryText {
            body,
            ..QueryText::constant("")
        })
    };
    // A client gets the queries of a whole session, one after another.
    assert_eq!(rendered(5, 1), r#"a "cy" 5 2 1"#);
    assert_eq!(rendered(6, 0), r#"a "ann" 6 0 0"#);

    // The saved plan makes the same queries.
    let spec = read(&text(varies, &format!("{ROWS}\n{CLIENTS}"))).unwrap();
    let kept = resolve(&spec, &RowsContext).unwrap();
    let kept = spec.with_defaults(&kept);
    let query = |spec: &Spec| spec.call.get::<SessionSection>().unwrap().query;
    assert_eq!(query(&kept).unwrap(), query(&spec).unwrap());
}

#[test]
fn query_errors_name_key() {
    for (session, load, expected) in [
        (
            "query = '{{sequence}}'",
            CLIENTS.to_owned(),
            "`call.session.query`: `{{sequence}}` is unknown",
        ),
        (
            "query = '{{seq'",
            CLIENTS.to_owned(),
            "`call.session.query`: `{{seq` is not closed",
        ),
        ("query = '{{row.name}}'", CLIENTS.to_owned(), "needs rows"),
        (
            "expect_tokens = 0",
            CLIENTS.to_owned(),
            "`call.session.expect_tokens`: 0 tokens",
        ),
        (
            "query = 'x'",
            format!("{ROWS}\n{CLIENTS}"),
            "`rows`: not used by the query or a header",
        ),
        (
            "query = '{{row.name}}'",
            format!("{ROWS}\norder = \"unique\"\n{CLIENTS}"),
            "the file has only 3 rows",
        ),
        (
            "query = '{{row.name}}'",
            format!("{ROWS}\norder = \"unique\"\n[load]\nrate = \"2/s\"\nduration = \"1s\""),
            "the file has only 3 rows",
        ),
    ] {
        let problems = plan_problems(&text(session, &load)).join("; ");
        assert!(problems.contains(expected), "{session} {load}: {problems}");
    }
    // Two queries of one session, and three rows.
    let enough = format!("{ROWS}\norder = \"unique\"\n[load]\nrate = \"1/s\"\nduration = \"1s\"");
    query("query = '{{row.name}}'", &enough);
}
