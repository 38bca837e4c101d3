//! Tests of recordings with requests to several origins.

use serde_json::json;
use toml::Table;

use super::tests::{
    answered, archive, entry, get, import_with, plan, post, request, step, with_header,
};
use crate::interface::protocol_module::PlanImportRequest;

#[test]
fn other_origins_become_targets_of_steps() {
    let mut cookie = answered(r#"{"token": "kX9vQ2mZ7pL4"}"#);
    cookie["headers"] = json!([{"name": "set-cookie", "value": "sid=Zk31xPq8Lw; Domain=.x"}]);
    let api = |path: &str| {
        let request = get(&format!("https://api.x{path}"));
        let request = with_header(request, "cookie", "sid=Zk31xPq8Lw");
        with_header(request, "authorization", "Bearer kX9vQ2mZ7pL4")
    };
    let mut entries = vec![
        entry(0, post("https://www.x/login", "text/plain", "hi"), cookie),
        entry(100, api("/items"), answered("{}")),
        entry(200, get("https://www.x/again"), answered("{}")),
        entry(300, get("https://www.x/third"), answered("{}")),
        entry(400, api("/items"), answered("{}")),
    ];
    for n in 0..7 {
        entries.push(entry(
            500 + n,
            get(&format!("http://t{n}/")),
            answered("{}"),
        ));
    }
    let text = archive(&entries);
    let all = PlanImportRequest {
        all_origins: true,
        ..request(&text)
    };
    let imported = import_with(&all).expect("a plan");
    let plan: Table = imported.plan.parse().expect("TOML");
    assert_eq!(plan["target"].as_str(), Some("https://www.x"));
    let steps = plan["steps"].as_array().expect("steps");
    // The plan's own target, that of the API and six others are eight.
    assert_eq!(steps.len(), 11);
    let target = |nth: usize| step(&plan, nth).get("target").and_then(|url| url.as_str());
    assert_eq!(target(0), None);
    assert_eq!(target(1), Some("https://api.x"));
    assert_eq!(target(3), None);
    assert_eq!(target(10), Some("http://t5"));
    let headers = &step(&plan, 1)["headers"];
    assert_eq!(headers["authorization"].as_str(), Some("Bearer {{token}}"));
    // A journey does not send a cookie to another host on its own.
    assert_eq!(headers["cookie"].as_str(), Some("sid={{sid}}"));
    let notes = imported.notes.join("\n");
    assert!(notes.contains("1 of another origin (http://t6)"), "{notes}");
    assert!(
        notes.contains("--origin https://www.x leaves them out"),
        "{notes}"
    );
}

#[test]
fn other_sites_are_left_out_by_default() {
    let entries = [
        entry(0, get("https://www.shop.example/"), answered("{}")),
        entry(10, get("https://www.shop.example/items"), answered("{}")),
        entry(
            20,
            get("https://api.shop.example:8443/items"),
            answered("{}"),
        ),
        entry(30, get("https://count.example/hit"), answered("{}")),
        entry(40, get("https://count.example/hit.gif"), answered("{}")),
        entry(50, get("https://cdn.example/logo.png"), answered("{}")),
    ];
    let text = archive(&entries);
    let (kept, imported) = plan(&text);
    assert_eq!(kept["target"].as_str(), Some("https://www.shop.example"));
    assert_eq!(kept["steps"].as_array().map(Vec::len), Some(3));
    let target = step(&kept, 2).get("target").and_then(|url| url.as_str());
    assert_eq!(target, Some("https://api.shop.example:8443"));
    let notes = imported.notes.join("\n");
    for part in [
        "1 asset (--with-assets keeps it)",
        "1 of another origin (https://cdn.example)",
        "1 of another site (https://count.example): --all-origins keeps it",
    ] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
    let all = PlanImportRequest {
        all_origins: true,
        ..request(&text)
    };
    let all: Table = import_with(&all)
        .expect("a plan")
        .plan
        .parse()
        .expect("TOML");
    assert_eq!(all["steps"].as_array().map(Vec::len), Some(4));
}
