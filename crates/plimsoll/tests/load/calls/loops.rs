//! Loops over several steps of a journey, against the reference server over HTTP.

use std::fs;

use serde_json::Value;

use super::support::{Place, stderr_of};

/// Runs the journeys of six clients, twenty in all.
fn run(place: &Place, steps: &str) -> Value {
    let server = place.serve(&["http"]);
    let target = server.address();
    let plan = format!("target = \"http://{target}\"\n[load]\nclients = 6\ncalls = 20\n{steps}");
    fs::write(place.path("loop.toml"), plan).expect("a writable folder");
    place.expect(0, &["run", "loop.toml", "-q", "--out", "run"]);
    place.run_json("run")
}

/// Returns the calls due and ok of each step.
fn counts(run: &Value) -> Vec<(&str, u64, u64)> {
    let steps = run["total"]["steps"].as_array().expect("a list");
    let each = steps.iter().map(|step| {
        let count = |key: &str| step[key].as_u64().expect("a count");
        let name = step["name"].as_str().expect("a name");
        (name, count("due"), count("ok"))
    });
    each.collect()
}

#[test]
fn iteration_values_serve_next_iteration() {
    let place = Place::new();
    let steps = r#"
[[steps]]
name = "ask"
loop = { name = "page", repeat = 4 }
pause = "1ms"
method = "POST"
path = "/echo"
body = '{"id": "{{uuid}}", "more": "yes"}'
take = { id = "/id", more = "/more" }

[[steps]]
name = "compare"
loop = "page"
if = "before"
method = "POST"
path = "/echo"
body = '{"ids": ["{{before}}", "{{id}}"]}'

[[steps]]
name = "remember"
loop = "page"
method = "POST"
path = "/echo"
body = '{"before": "{{id}}"}'
take.before = "/before"

[[steps]]
name = "again"
loop = { name = "while", repeat = "while more" }
method = "POST"
path = "/echo"
body = '{"more": "{{random 0 9}}"}'
take.more = { regex = '"more": "([0-7])"', optional = true }

[[steps]]
name = "leave"
path = "/bytes/10"
"#;
    let run = run(&place, steps);
    let again = counts(&run)[3];
    assert_eq!(
        counts(&run),
        [
            ("ask", 80, 80),
            ("compare", 60, 60),
            ("remember", 80, 80),
            again,
            ("leave", 20, 20),
        ],
        "{run}"
    );
    assert!(again.1 == again.2 && again.1 > 20, "{run}");
    assert_eq!(run["total"]["measures"]["counts"]["users_ok"], 20, "{run}");
    // The saved plan has the loops.
    let saved = fs::read_to_string(place.path("run/plan.toml")).expect("a plan");
    assert!(saved.contains("loop = \"page\""), "{saved}");
}

#[test]
fn invalid_loops_name_their_key() {
    let place = Place::new();
    let begin = "loop = { name = \"a\", repeat = 3 }";
    for (first, second, problem) in [
        (
            "loop = \"a\"",
            "",
            "steps.0.loop`: `a`: the first step of a loop says how often",
        ),
        (
            "loop = { name = \"a\", repeat = 0 }",
            "",
            "steps.0.loop.repeat`: 0 times",
        ),
        (
            "loop = { name = \"a\", repeat = \"while more\" }",
            "",
            "steps.0.loop.repeat`: `more` is bound by no earlier step",
        ),
        (begin, begin, "steps.1.loop`: `a` begins at an earlier step"),
        (
            begin,
            "loop = \"a\"\nweight = 2\n[[steps]]\nname = \"c\"\npath = \"/c\"\nweight = 1",
            "a loop has all branches of a choice",
        ),
        (
            "loop = { name = \"a\", times = 3 }",
            "",
            "steps.loop.times`: unknown key",
        ),
    ] {
        let plan = format!(
            "target = \"http://127.0.0.1:1\"\n[load]\nclients = 1\ncalls = 1\n\
             [[steps]]\nname = \"a\"\npath = \"/a\"\n{first}\n[[steps]]\nname = \"b\"\npath = \"/b\"\n{second}\n"
        );
        fs::write(place.path("wrong.toml"), plan).expect("a writable folder");
        let refused = place.run(&["run", "wrong.toml", "--dry-run"]);
        let said = stderr_of(&refused);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains(problem), "{problem}\n{said}");
    }
}
