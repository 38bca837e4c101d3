//! Plans that `import` makes of recordings, run against the site that was recorded: its tokens are others each time, so
//! users only come through if their plan takes them from answers.
//!
//! `recordings/chromium.har` was written by Playwright's Chromium, and `mitmproxy.har` by mitmproxy, both of
//! `tests/peers/django_shop.py`; `firefox.har` has Firefox's fields. Each has the host `shop.test`.

use std::fs;
use std::process::Command;

use super::run_measured;
use crate::support::peers::{peer, python};
use crate::support::{Place, Server, text};

const WRITERS: [&str; 3] = ["chromium", "firefox", "mitmproxy"];
const RECORDED_LOAD: &str = "rate     = \"1/s\"\nduration = \"10s\"";

/// Imports the recording of this writer, with the server's address in it, and returns the plan and what was printed.
fn import(place: &Place, server: &Server, writer: &str) -> (String, String) {
    let recording = format!(
        "{}/tests/load/http/recordings/{writer}.har",
        env!("CARGO_MANIFEST_DIR")
    );
    let recording = fs::read_to_string(recording).expect("a recording");
    let recording = recording.replace("shop.test", &server.address());
    fs::write(place.path("recording.har"), recording).expect("a writable folder");
    let _ = fs::remove_file(place.path("shop.toml"));
    let said = place.run(&["import", "recording.har", "--out", "shop.toml"]);
    assert_eq!(said.status.code(), Some(0), "{writer}: {said:?}");
    let plan = fs::read_to_string(place.path("shop.toml")).expect("a plan");
    (plan, text(&said.stderr))
}

/// Runs the plan with twelve journeys, and returns how many users came through.
fn users_ok(place: &Place, plan: &str) -> u64 {
    let plan = plan.replace(RECORDED_LOAD, "clients = 3\ncalls = 12");
    fs::write(place.path("edited.toml"), plan).expect("a writable folder");
    let _ = fs::remove_dir_all(place.path("run"));
    let run = run_measured(
        place,
        0,
        &["run", "edited.toml", "-q", "--json", "--out", "run"],
    );
    let users = run["total"]["measures"]["counts"]["users_ok"].as_u64();
    users.unwrap_or_default()
}

#[test]
fn imported_plans_run_against_recorded_site() {
    for writer in WRITERS {
        let place = Place::new();
        let shop = Server::start(python(&place, "django_shop.py").arg("uvicorn"));
        let (plan, printed) = import(&place, &shop, writer);
        assert!(
            !plan.contains("secret of") && !plan.contains("secret+of"),
            "{plan}"
        );
        assert!(printed.contains("the line `password`"), "{printed}");
        assert!(
            printed.contains("next: plimsoll run shop.toml --dry-run"),
            "{printed}"
        );
        let refused = place.run(&["run", "shop.toml", "--dry-run"]);
        assert!(
            text(&refused.stderr).contains("shop-users.csv"),
            "{refused:?}"
        );
        let mut users = "password,reference\n".to_owned();
        (0..12).for_each(|n| users += &format!("secret+of+ada,order-{n}\n"));
        fs::write(place.path("shop-users.csv"), users).expect("a writable folder");
        let dry = place.run(&["run", "shop.toml", "--dry-run"]);
        assert_eq!(dry.status.code(), Some(0), "{writer}: {dry:?}\n{plan}");
        // What a person edits: each order has a reference of its own, which the shop refuses once.
        let order = "name = \"POST /orders\"\n";
        let edited = plan
            .replace(
                order,
                &format!("{order}on_failure = \"retry\"\nbackoff = \"5ms\"\n"),
            )
            .replace("\"r-ada-1\"", "\"{{row.reference}}\"")
            .replace("\"m-ada-1\"", "\"{{row.reference}}\"");
        assert_eq!(users_ok(&place, &edited), 12, "{writer}: {edited}");
        // With what was recorded in place of what is taken, nobody comes through.
        let replayed = edited.replace("Bearer {{token}}", "Bearer 4199d87554e8ccf3");
        assert_ne!(replayed, edited);
        assert_eq!(users_ok(&place, &replayed), 0, "{writer}");
    }
}

#[test]
fn edited_plans_are_not_replaced() {
    let place = Place::new();
    let lines =
        "curl 'http://127.0.0.1:1/a' -H 'accept: text/plain'\ncurl 'http://127.0.0.1:1/b'\n";
    fs::write(place.path("lines.sh"), lines).expect("a writable folder");
    let first = place.run(&["import", "lines.sh", "--out", "lines.toml"]);
    assert_eq!(first.status.code(), Some(0), "{first:?}");
    let again = place.run(&["import", "lines.sh", "--out", "lines.toml"]);
    assert_eq!(again.status.code(), Some(2), "{again:?}");
    assert!(text(&again.stderr).contains("exists"), "{again:?}");
    // Without a file the plan is printed, and nothing else is.
    let printed = place.run(&["import", "lines.sh"]);
    let written = fs::read_to_string(place.path("lines.toml")).expect("a plan");
    assert_eq!(text(&printed.stdout), written);
    let dry = place.run(&["run", "lines.toml", "--dry-run"]);
    assert_eq!(dry.status.code(), Some(0), "{dry:?}");
}

#[test]
fn flags_of_other_sources_are_rejected() {
    let place = Place::new();
    fs::write(place.path("lines.sh"), "curl http://127.0.0.1:1/\n").expect("writable");
    fs::write(place.path("steady.txt"), "#TEST=01_steady\n").expect("writable");
    fs::write(place.path("script.js"), "import http from 'k6/http';\n").expect("writable");
    for (arguments, expected) in [
        (
            &["import", "lines.sh", "--operation", "x"][..],
            "--operation: only",
        ),
        (&["import", "lines.sh", "--json"], "a plan is TOML"),
        (
            &["import", "steady.txt", "--with-assets"],
            "--with-assets: the file is none",
        ),
        (&["import", "script.js"], "it is a script of k6"),
    ] {
        let said = place.run(arguments);
        assert_ne!(said.status.code(), Some(0), "{arguments:?}");
        let printed = text(&said.stderr);
        let printed: Vec<&str> = printed.split(['\n', '│']).map(str::trim).collect();
        assert!(
            printed.join(" ").contains(expected),
            "{arguments:?}: {printed:?}"
        );
    }
}

/// The description that FastAPI itself writes of a small service.
const SERVICE: &str = r#"
import json, sys
from enum import Enum
from fastapi import Depends, FastAPI, Header, Query
from fastapi.security import APIKeyHeader
from pydantic import BaseModel, Field

app = FastAPI(title="Stock")

class Kind(str, Enum):
    small = "small"
    large = "large"

class Line(BaseModel):
    sku: str = Field(min_length=3)
    count: int = Field(ge=1)

class Order(BaseModel):
    lines: list[Line] = Field(min_length=1)
    kind: Kind
    note: str | None = None

@app.get("/items")
def items(page: int = 1, tag: list[str] = Query(default=["a", "b"]), q: str | None = None):
    return {"page": page}

@app.get("/items/{item_id}")
def item(item_id: int, x_tenant: str = Header(examples=["t1"])):
    return {"id": item_id}

@app.get("/kinds/{kind}")
def kind(kind: Kind):
    return kind

@app.post("/orders", dependencies=[Depends(APIKeyHeader(name="x-api-key"))])
def order(order: Order):
    return order

json.dump(app.openapi(), open("openapi.json", "w"))
if len(sys.argv) > 1:
    sys.path.insert(0, sys.argv[1])
    from asgi import serve
    serve(app)
"#;

#[test]
fn description_of_fastapi_runs() {
    let place = Place::new();
    fs::write(place.path("service.py"), SERVICE).expect("a writable folder");
    let peers = format!("{}/../../tests/peers", env!("CARGO_MANIFEST_DIR"));
    let mut service = Command::new(peer("venv/bin/python"));
    service
        .args(["service.py", &peers])
        .current_dir(place.path(""));
    let server = Server::start(&mut service);
    let no_server = place.run(&["import", "openapi.json"]);
    assert!(
        text(&no_server.stderr).contains("add --origin"),
        "{no_server:?}"
    );
    let origin = format!("http://{}", server.address());
    let said = place.run(&[
        "import",
        "openapi.json",
        "--origin",
        &origin,
        "--out",
        "api.toml",
    ]);
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    let refused = place.run(&["run", "api.toml", "--dry-run"]);
    assert!(
        text(&refused.stderr).contains("VALUE-OF-item_id"),
        "{refused:?}"
    );
    let plan = fs::read_to_string(place.path("api.toml")).expect("a plan");
    assert_eq!(
        users_ok(&place, &plan.replace("{{VALUE-OF-item_id}}", "7")),
        12,
        "{plan}"
    );
    let only = [
        "import",
        "openapi.json",
        "--origin",
        &origin,
        "--operation",
        "POST /orders",
    ];
    let said = place.run(&[&only[..], &["--out", "order.toml"]].concat());
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    assert!(text(&said.stderr).contains("ORDER_X_API_KEY"), "{said:?}");
    let plan = fs::read_to_string(place.path("order.toml")).expect("a plan");
    let plan = plan.replace("{ env = \"ORDER_X_API_KEY\" }", "\"k\"");
    assert_eq!(users_ok(&place, &plan), 12, "{plan}");
}
