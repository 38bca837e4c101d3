//! What steps expect of their answers, with the values of each user; and texts of steps that are not filled in.

use std::fs;

use serde_json::Value;

use super::support::{Place, stderr_of};

const LOG_IN: &str = r#"
[[steps]]
name = "log in"
method = "POST"
path = "/echo"
body = '{"id": "u-{{uuid}}", "other": "o-{{uuid}}"}'
take = { id = "/id", other = "/other" }
"#;

/// Runs the steps after a log-in, of six journeys by two clients.
fn run(place: &Place, version: &str, steps: &str) -> Value {
    let server = place.serve(&["http"]);
    let address = server.address();
    let plan = format!(
        "target = \"http://{address}\"\n[call.http]\nversion = \"{version}\"\n\
         [load]\nclients = 2\ncalls = 6\n{LOG_IN}{steps}"
    );
    fs::write(place.path("expect.toml"), plan).expect("a writable folder");
    let _ = fs::remove_dir_all(place.path("run"));
    let ran = place.run(&["run", "expect.toml", "-q", "--out", "run"]);
    assert!(place.path("run").exists(), "{}", stderr_of(&ran));
    place.run_json("run")
}

/// Returns the numbers of ok calls of each step.
fn ok_calls(run: &Value) -> Vec<(&str, u64)> {
    let steps = run["total"]["steps"].as_array().expect("a list");
    let each = steps.iter().map(|step| {
        let ok = step["ok"].as_u64().expect("a count");
        (step["name"].as_str().expect("a name"), ok)
    });
    each.collect()
}

#[test]
fn expected_texts_have_user_values() {
    let steps = r#"
[[steps]]
name = "same"
method = "POST"
path = "/echo"
body = '{"said": "{{id}}", "n": {{seq}}}'
headers.content-type = "text/{{id}}"
expect_body = '{"said": "{{id}}", "n": {{seq}}}'
expect_headers = { content-type = "text/{{id}}" }
repeat = 3

[[steps]]
name = "other body"
method = "POST"
path = "/echo"
body = '{"said": "{{id}}"}'
expect_body = "{{other}}"
on_failure = "continue"

[[steps]]
name = "other header"
method = "POST"
path = "/echo"
body = "x"
headers.content-type = "text/{{id}}"
expect_headers = { content-type = "text/{{other}}" }
on_failure = "continue"

[[steps]]
name = "braces"
method = "POST"
path = "/echo"
body = "{{{{id}}"
expect_body = "{{{{id}}"
"#;
    for version in ["1.1", "2"] {
        let place = Place::new();
        let run = run(&place, version, steps);
        let expected = [
            ("log in", 6),
            ("same", 18),
            ("other body", 0),
            ("other header", 0),
            ("braces", 6),
        ];
        assert_eq!(ok_calls(&run), expected, "{version}: {run}");
        let errors = run["total"]["errors_by_code"].as_array().expect("a list");
        let mut codes: Vec<&str> = errors.iter().filter_map(|e| e["code"].as_str()).collect();
        codes.sort_unstable();
        assert_eq!(codes, ["HTTP_BODY", "HTTP_HEADER"], "{version}: {run}");
        // The plan in the run directory has the fields, and none of the values.
        let saved = fs::read_to_string(place.path("run/plan.toml")).expect("a plan");
        assert!(saved.contains("expect_body = \"{{other}}\""), "{saved}");
    }
}

#[test]
fn unknown_and_unfilled_fields_name_their_key() {
    let place = Place::new();
    for (step, key, problem) in [
        (
            "expect_body = \"{{idd}}\"",
            "expect_body",
            "did you mean id?",
        ),
        (
            "expect_headers = { x-id = \"{{idd}}\" }",
            "expect_headers.x-id",
            "did you mean id?",
        ),
        (
            "method = \"HEAD\"\nexpect_body = \"{{id}}\"",
            "method",
            "answers to HEAD have no body",
        ),
        ("host = \"{{id}}.example\"", "host", "not filled in here"),
        ("if = \"id == {{other}}\"", "if", "not filled in here"),
        (
            "take.x = { regex = \"{{id}}([0-9]+)\" }",
            "take.x.regex",
            "not filled in here",
        ),
        (
            "target = \"ws://127.0.0.1:2\"\nuntil = { regex = \"^{{id}}\" }",
            "until.regex",
            "not filled in here",
        ),
        (
            "target = \"sofa://127.0.0.1:2\"\nservice = \"{{id}}\"\nmethod = \"a\"\narguments = \"[]\"",
            "service",
            "not filled in here",
        ),
        (
            "target = \"grpc://127.0.0.1:2\"\nmethod = \"grpc.examples.echo.Echo/UnaryEcho\"\n\
             message = { message = \"a\" }\nexpect_message = { message = \"{{idd}}\" }",
            "expect_message",
            "did you mean id?",
        ),
        (
            "target = \"grpc://127.0.0.1:2\"\nmethod = \"grpc.examples.echo.Echo/UnaryEcho\"\n\
             message = { message = \"a\" }\nexpect_message = { massage = \"{{id}}\" }",
            "expect_message",
            "has no field `massage`",
        ),
        (
            "target = \"grpc://127.0.0.1:2\"\nmethod = \"grpc.examples.echo.Echo/UnaryEcho\"\n\
             message = { message = \"a\" }\nauthority = \"{{id}}\"",
            "authority",
            "not filled in here",
        ),
    ] {
        let plan = format!(
            "target = \"http://127.0.0.1:1\"\n[load]\nclients = 1\ncalls = 1\n{LOG_IN}[[steps]]\nname = \"x\"\n{step}\n"
        );
        fs::write(place.path("wrong.toml"), plan).expect("a writable folder");
        let ran = place.run(&["run", "wrong.toml", "--dry-run"]);
        assert_eq!(ran.status.code(), Some(2), "{step}");
        let said = stderr_of(&ran);
        let key = format!("`steps.1.{key}");
        assert!(
            said.contains(&key) && said.contains(problem),
            "{step}: {said}"
        );
    }
}

#[test]
fn expected_messages_have_user_values() {
    let place = Place::new();
    let echo = place.serve(&["echo"]);
    let step = |name: &str, said: &str| {
        format!(
            "\n[[steps]]\nname = \"{name}\"\ntarget = \"grpc://{}\"\n\
             method = \"grpc.examples.echo.Echo/UnaryEcho\"\nmessage = {{ message = \"{{{{id}}}} said\" }}\n\
             expect_message = {{ message = \"{{{{{said}}}}} said\" }}\non_failure = \"continue\"\n",
            echo.address()
        )
    };
    let steps = [
        step("own", "id"),
        step("other", "other"),
        step("again", "id"),
    ];
    let run = run(&place, "1.1", &steps.concat());
    let expected = [("log in", 6), ("own", 6), ("other", 0), ("again", 6)];
    assert_eq!(ok_calls(&run), expected, "{run}");
    assert_eq!(
        run["total"]["errors_by_code"][0]["code"],
        "MESSAGE_MISMATCH"
    );
}
