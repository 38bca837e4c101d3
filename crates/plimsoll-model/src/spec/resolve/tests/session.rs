//! `[call.session]`: what its queries ask.

use super::*;
use crate::plan::QueryText;

fn text(session: &str, load: &str) -> String {
    format!(
        "target = \"session://h:1\"\nseed = 3\n{load}\n[call.session]\nqueries = 2\n{session}\n"
    )
}

fn query(session: &str, load: &str) -> QueryText {
    let CallPlan::Session(call) = plan(&text(session, load)).call else {
        panic!("sessions");
    };
    call.query
}

const CLIENTS: &str = "[load]\nclients = 3";
const ROWS: &str = "[rows]\nfile = \"users.csv\"";

#[test]
fn queries_are_json_whatever_their_text() {
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
        let moment = varying.variation.moment(number, in_session, 0);
        let mut body = Vec::new();
        varying.messages[0].render(&moment, &mut body);
        assert!(body.len() <= varying.messages[0].most());
        asked(&QueryText {
            body,
            ..QueryText::constant("")
        })
    };
    // A client has the queries of a whole session in a row.
    assert_eq!(rendered(5, 1), r#"a "cy" 5 2 1"#);
    assert_eq!(rendered(6, 0), r#"a "ann" 6 0 0"#);

    // The plan that a run keeps asks the same.
    let spec = read(&text(varies, &format!("{ROWS}\n{CLIENTS}"))).unwrap();
    let kept = resolve(&spec, &World).unwrap();
    let kept = spec.filled_in(&kept);
    let call = kept.call.session.unwrap();
    assert_eq!(Some(call.query.unwrap()), spec.call.session.unwrap().query);
}

#[test]
fn what_queries_can_not_ask_is_reported_by_key() {
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
            "`rows`: the query has no field",
        ),
        (
            "query = '{{row.name}}'",
            format!("{ROWS}\norder = \"unique\"\n{CLIENTS}"),
            "\"unique\" with 3 rows",
        ),
        (
            "query = '{{row.name}}'",
            format!("{ROWS}\norder = \"unique\"\n[load]\nrate = \"2/s\"\nduration = \"1s\""),
            "\"unique\" with 3 rows",
        ),
    ] {
        let problems = wrong(&text(session, &load)).join("; ");
        assert!(problems.contains(expected), "{session} {load}: {problems}");
    }
    // Two queries of one session, and three rows.
    let enough = format!("{ROWS}\norder = \"unique\"\n[load]\nrate = \"1/s\"\nduration = \"1s\"");
    query("query = '{{row.name}}'", &enough);
}
