//! Journeys of several steps through a site on Django: a form with a CSRF token, a session in a cookie, a bearer token,
//! a list in pages, an order that is refused once, and its look-up at the place that the answer names.

use std::fs;

use serde_json::Value;

use super::run_measured;
use crate::path_counts::count_requests;
use crate::support::peers::python;
use crate::support::{Place, Server};

const STEPS: &str = r#"
[rows]
file = "users.csv"

[[steps]]
name = "form"
path = "/login"
take.csrf = { regex = 'name="csrfmiddlewaretoken" value="([^"]+)"' }

[[steps]]
name = "log in"
method = "POST"
path = "/login"
body = "user={{row.user}}&password=secret+of+{{row.user}}&csrfmiddlewaretoken={{csrf}}"
headers.content-type = "application/x-www-form-urlencoded"
take.token = "/token"
take.csrf = "/csrf"

[[steps]]
name = "list"
path = "/items?page=1"
headers.authorization = "Bearer {{token}}"
pause = "1ms to 5ms"
take.item = "$.items[?@.in_stock == true].id"
take.page = { json = "/next", optional = true }

[[steps]]
name = "more"
path = "/items?page={{page}}"
repeat = "while page"
if = "page"
headers.authorization = "Bearer {{token}}"
take.page = { json = "/next", optional = true }

[[steps]]
name = "order"
path = "/orders"
body = '{"item": {{item}}, "reference": "{{row.user}}"}'
headers.authorization = "Bearer {{token}}"
headers.x-csrftoken = "{{csrf}}"
expect = [201]
on_failure = "retry"
backoff = "5ms"
take.location = { header = "location" }

[[steps]]
name = "look up"
path = "{{location}}"
headers.authorization = "Bearer {{token}}"
expect_body = "open"
"#;

fn shop(place: &Place, server: &str) -> Server {
    let mut users = "user\n".to_owned();
    (0..20).for_each(|n| users += &format!("u{n}\n"));
    fs::write(place.path("users.csv"), users).expect("a writable folder");
    Server::start(python(place, "django_shop.py").arg(server))
}

/// Runs the journeys of six clients, twenty in all.
fn run(place: &Place, server: &Server, steps: &str, version: &str, code: i32) -> Value {
    let _ = fs::remove_dir_all(place.path("run"));
    let address = server.address();
    let plan = format!(
        "name = \"shop\"\ntarget = \"http://{address}\"\n[call.http]\nversion = \"{version}\"\n\
         [load]\nclients = 6\ncalls = 20\n{steps}"
    );
    fs::write(place.path("shop.toml"), plan).expect("a writable folder");
    let arguments = ["run", "shop.toml", "-q", "--json", "--out", "run"];
    run_measured(place, code, &arguments)
}

fn step<'a>(run: &'a Value, name: &str) -> &'a Value {
    let steps = run["total"]["steps"].as_array().expect("a list");
    let found = steps.iter().find(|step| step["name"] == name);
    found.unwrap_or_else(|| panic!("no step {name}: {run}"))
}

#[test]
fn django_users_log_in_list_and_order() {
    for (server, version) in [("uvicorn", "1.1"), ("hypercorn", "2")] {
        let place = Place::new();
        let shop = shop(&place, server);
        let first = run(&place, &shop, STEPS, version, 0);
        for (name, due, ok) in [
            ("form", 20, 20),
            ("log in", 20, 20),
            ("list", 20, 20),
            ("more", 40, 40),
            ("order", 40, 20),
            ("look up", 20, 20),
        ] {
            let step = step(&first, name);
            assert_eq!(
                (&step["due"], &step["ok"]),
                (&due.into(), &ok.into()),
                "{name}: {first}"
            );
        }
        let refused = &step(&first, "order")["errors_by_code"][0];
        assert_eq!(refused["count"], 20, "{first}");
        let measures = &first["total"]["measures"];
        assert_eq!(measures["counts"]["users_ok"], 20, "{first}");
        assert_eq!(measures["times"]["journey"]["count"], 20, "{first}");
        assert_eq!(first["count_check"]["matches"], true, "{first}");
        // The site has seen each user and its order, and nobody without a session.
        let stats = place.run(&[
            "http",
            &format!("http://{}/stats", shop.address()),
            "--clients",
            "1",
            "--calls",
            "1",
            "-q",
            "--expect-body",
            r#""ordered": 20"#,
            "--out",
            "stats",
        ]);
        assert_eq!(stats.status.code(), Some(0), "{stats:?}");
        // Nothing that was taken is in the run directory, and its plan runs again.
        let saved = fs::read_to_string(place.path("run/plan.toml")).unwrap();
        assert!(saved.contains("Bearer {{token}}"), "{saved}");
        fs::rename(place.path("run"), place.path("first")).unwrap();
        let again = place.run(&["run", "first/plan.toml", "-q", "--out", "run"]);
        let text = String::from_utf8_lossy(&again.stdout).into_owned();
        let words: Vec<&str> = text.split_whitespace().collect();
        assert!(words.join(" ").contains("look up 20 20 0"), "{text}");
    }
}

#[test]
fn missing_values_fail_their_step_by_name() {
    let place = Place::new();
    let shop = shop(&place, "uvicorn");
    let steps = STEPS.replace("take.token = \"/token\"", "take.token = \"/tokn\"");
    let run = run(&place, &shop, &steps, "1.1", 0);
    assert_eq!(
        run["total"]["measures"]["counts"]["users_failed"], 20,
        "{run}"
    );
    let failed = &step(&run, "log in")["errors_by_code"][0];
    assert_eq!(
        (&failed["code"], &failed["count"]),
        (&"TAKE_MISSING".into(), &20.into()),
        "{run}"
    );
    assert_eq!(step(&run, "list")["due"], 0, "{run}");
    let report = place.run(&["report", "run"]);
    let report = String::from_utf8_lossy(&report.stdout).into_owned();
    let words: Vec<&str> = report.split_whitespace().collect();
    let report = words.join(" ");
    assert!(
        report.contains("step log in: `token` (json /tokn): the answer has none"),
        "{report}"
    );
}

#[test]
fn invalid_steps_are_rejected_by_key() {
    let place = Place::new();
    for (from, to, problem) in [
        (
            "path = \"{{location}}\"",
            "path = \"/x/{{locaton}}\"",
            "did you mean location?",
        ),
        (
            "repeat = \"while page\"",
            "repeat = \"while pages\"",
            "bound by no earlier step",
        ),
        ("if = \"page\"", "iff = \"page\"", "did you mean `if`?"),
        (
            "backoff = \"5ms\"",
            "backoff = \"5ms\"\nversion = \"2\"",
            "the same for all steps",
        ),
        ("\"/csrf\"", "\"csrf\"", "neither a JSON Pointer"),
        (
            "\"retry\"",
            "\"again\"",
            "use \"end\", \"continue\" or \"retry\"",
        ),
        (
            "name = \"list\"",
            "name = \"form\"",
            "the name of an earlier step",
        ),
    ] {
        let steps = STEPS.replace(from, to);
        let plan = format!("target = \"http://127.0.0.1:1\"\n[load]\nclients = 1\n{steps}");
        fs::write(place.path("users.csv"), "user\nann\n").unwrap();
        fs::write(place.path("shop.toml"), plan).expect("a writable folder");
        let said = place.run(&["run", "shop.toml", "--dry-run"]);
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        let text: Vec<&str> = text.split(['\n', '│']).map(str::trim).collect();
        let text = text.join(" ");
        assert_eq!(said.status.code(), Some(2), "{to}: {text}");
        assert!(
            text.contains("steps.") && text.contains(problem),
            "{to}: {text}"
        );
    }
}

#[test]
fn processes_divide_users_and_merge_steps() {
    let place = Place::new();
    let server = place.serve(&["http"]);
    let address = server.address();
    let plan = format!(
        "target = \"http://{address}\"\n[load]\nclients = 4\ncalls = 40\nprocesses = 2\n\
         [[steps]]\nname = \"say\"\npath = \"/echo\"\nbody = '{{\"n\": {{{{seq}}}}}}'\ntake.n = \"/n\"\n\
         [[steps]]\nname = \"ask\"\npath = \"/bytes/{{{{n}}}}\"\nrepeat = 2\n"
    );
    fs::write(place.path("plan.toml"), plan).expect("a writable folder");
    let arguments = ["run", "plan.toml", "-q", "--json", "--out", "run"];
    let run = run_measured(&place, 0, &arguments);
    assert_eq!(run["processes"], 2, "{run}");
    assert_eq!(step(&run, "say")["ok"], 40, "{run}");
    assert_eq!(step(&run, "ask")["ok"], 80, "{run}");
    assert_eq!(run["total"]["measures"]["counts"]["users_ok"], 40, "{run}");
    // Each client is one user at a time, and waits for its connection.
    let users = &run["total"]["measures"]["users"];
    assert_eq!(users["in_flight_max"], 4, "{run}");
    let mean = users["in_flight_mean"].as_f64().expect("a mean");
    assert!(mean > 0.0 && mean <= 4.0, "{run}");
    let waiting = users["waiting_max"].as_u64();
    assert!((1..=4).contains(&waiting.expect("a number")), "{run}");
    let report = place.run(&["report", "run"]);
    let report = String::from_utf8_lossy(&report.stdout).into_owned();
    let words: Vec<&str> = report.split_whitespace().collect();
    assert!(
        words
            .join(" ")
            .contains("on average, at most 4; waiting for a connection:"),
        "{report}"
    );
}

#[test]
fn processes_use_each_unique_row_once() {
    let place = Place::new();
    let rows: String = (0..40).map(|n| format!("u{n}\n")).collect();
    fs::write(place.path("users.csv"), format!("user\n{rows}")).expect("a writable folder");
    for load in [
        "clients = 6\ncalls = 40",
        "rate = \"40/s\"\nduration = \"1s\"",
    ] {
        let (address, counts) = count_requests();
        let plan = format!(
            "target = \"http://{address}\"\n[rows]\nfile = \"users.csv\"\norder = \"unique\"\n\
             [load]\nprocesses = 2\n{load}\n[[steps]]\nname = \"one\"\npath = \"/{{{{row.user}}}}\"\n\
             [[steps]]\nname = \"two\"\npath = \"/again/{{{{row.user}}}}\"\n"
        );
        fs::write(place.path("plan.toml"), &plan).expect("a writable folder");
        let _ = fs::remove_dir_all(place.path("run"));
        run_measured(
            &place,
            0,
            &["run", "plan.toml", "-q", "--json", "--out", "run"],
        );
        let counts = counts.lock().expect("counts").clone();
        assert_eq!(counts.len(), 80, "{load}: {counts:?}");
        assert!(counts.values().all(|n| *n == 1), "{load}: {counts:?}");
        // One user more has no row.
        let more = plan
            .replace("calls = 40", "calls = 41")
            .replace("40/s", "41/s");
        fs::write(place.path("plan.toml"), more).expect("a writable folder");
        let said = place.run(&["run", "plan.toml", "-q", "--out", "more"]);
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(said.status.code(), Some(2), "{load}: {text}");
        assert!(text.contains("rows.order"), "{load}: {text}");
    }
}
