//! Saved plans whose steps name files: they run again, unless a file has changed.

use std::fs;

use super::support::{Place, stderr_of};

#[test]
fn saved_steps_refuse_changed_files() {
    let place = Place::new();
    let (http, echo, bolt) = (
        place.serve(&["http"]),
        place.serve(&["echo"]),
        place.serve(&["bolt"]),
    );
    let files = [
        ("body.json", "{\"a\": 1}"),
        ("message.json", "{\"message\": \"a\"}"),
        ("content.bin", "abc"),
        ("users.csv", "user\nada\n"),
    ];
    for (name, text) in files {
        fs::write(place.path(name), text).unwrap();
    }
    let plan = format!(
        r#"
target = "http://{}"
[rows]
file = "users.csv"
[[steps]]
name = "http"
method = "POST"
path = "/echo?user={{{{row.user}}}}"
body_file = "body.json"
[[steps]]
name = "grpc"
target = "grpc://{}"
method = "grpc.examples.echo.Echo/UnaryEcho"
message_file = "message.json"
[[steps]]
name = "bolt"
target = "sofa://{}"
class = "java.lang.String"
codec = 11
content_file = "content.bin"
[load]
clients = 2
calls = 4
"#,
        http.address(),
        echo.address(),
        bolt.address()
    );
    fs::write(place.path("plan.toml"), plan).unwrap();
    place.run(&["run", "plan.toml", "-q", "--out", "run"]);
    let saved = fs::read_to_string(place.path("run/plan.toml")).unwrap();
    // The names are as typed, and so the plan runs again in the same folder.
    let again = place.run(&["run", "run/plan.toml", "-q", "--out", "again"]);
    assert_ne!(again.status.code(), Some(2), "{}", stderr_of(&again));
    assert_eq!(
        fs::read_to_string(place.path("again/plan.toml")).unwrap(),
        saved
    );
    for (name, text) in files {
        assert!(
            saved.contains(&format!("\"{name}\" = \"")),
            "{name}: {saved}"
        );
        let refusal = |problem: &str| {
            let refused = place.run(&["run", "run/plan.toml", "--dry-run"]);
            let said = stderr_of(&refused);
            assert_eq!(refused.status.code(), Some(2), "{name}: {said}");
            assert!(said.contains(problem), "{problem}: {said}");
        };
        fs::write(place.path(name), text.replace('a', "b")).unwrap();
        refusal(&format!("{name} has changed since the plan was saved"));
        fs::remove_file(place.path(name)).unwrap();
        refusal(&format!("can't read {name}"));
        fs::write(place.path(name), text).unwrap();
    }
}
