//! Tests of whole imports: what becomes of recordings, descriptions and lines, however odd they are.

use plimsoll_model::spec;
use serde_json::{Value, json};
use toml::Table;

use super::*;

pub(super) fn request<'a>(text: &'a str) -> PlanImportRequest<'a> {
    PlanImportRequest {
        text,
        name: "shop",
        origin: None,
        all_origins: false,
        with_assets: false,
        operations: &[],
    }
}

/// Imports a file by what it is recognised as.
pub(super) fn import_with(request: &PlanImportRequest<'_>) -> Result<PlanImportResult, String> {
    let mut sources = PLAN_SOURCES.iter();
    let source = sources.find(|source| (source.recognises)(request.text));
    let source = source.ok_or("not recognised")?;
    (source.import)(request).map_err(|e| e.to_string())
}

pub(super) fn import(text: &str) -> Result<PlanImportResult, String> {
    import_with(&request(text))
}

/// Returns the plan, which must be one that can be read.
pub(super) fn plan(text: &str) -> (Table, PlanImportResult) {
    let imported = import(text).expect("a plan");
    crate::registry::register_protocols();
    let read = spec::read(&imported.plan);
    assert!(read.is_ok(), "{read:?}\n{}", imported.plan);
    (imported.plan.parse().expect("TOML"), imported)
}

pub(super) fn step(plan: &Table, nth: usize) -> &Table {
    plan["steps"][nth].as_table().expect("a step")
}

/// An entry of a recording that starts at `at` milliseconds and takes ten.
pub(super) fn entry(at_ms: u64, request: Value, response: Value) -> Value {
    let started = format!(
        "2026-11-29T10:00:{:02}.{:03}Z",
        at_ms / 1_000,
        at_ms % 1_000
    );
    json!({"startedDateTime": started, "time": 10.0, "request": request, "response": response})
}

pub(super) fn get(url: &str) -> Value {
    json!({"method": "GET", "url": url, "headers": []})
}

pub(super) fn answered(text: &str) -> Value {
    json!({"status": 200, "headers": [], "content": {"mimeType": "application/json", "text": text}})
}

pub(super) fn post(url: &str, kind: &str, text: &str) -> Value {
    json!({"method": "POST", "url": url, "headers": [{"name": "Content-Type", "value": kind}],
        "postData": {"mimeType": kind, "text": text}})
}

pub(super) fn with_header(mut message: Value, name: &str, value: &str) -> Value {
    let headers = message["headers"].as_array_mut().expect("headers");
    headers.push(json!({"name": name, "value": value}));
    message
}

pub(super) fn archive(entries: &[Value]) -> String {
    json!({"log": {"version": "1.2", "creator": {"name": "x", "version": "1"}, "entries": entries}})
        .to_string()
}

const FORM: &str = "application/x-www-form-urlencoded";

#[test]
fn values_of_answers_are_taken_where_they_come_first() {
    let login = r#"{"user":{"id":42},"access_token":"tok-8Z1/x+=","list":[{"sku":"a1b2c3"}]}"#;
    let created = with_header(
        json!({"status": 201, "headers": [], "content": {}}),
        "Location",
        "http://a/orders/o-77123?k=1",
    );
    let text = archive(&[
        entry(
            0,
            post("http://a/login", "application/json", r#"{"user":"ada"}"#),
            answered(login),
        ),
        entry(
            1_000,
            with_header(
                get("http://a/users/42?t=tok-8Z1%2Fx%2B%3D"),
                "Authorization",
                "Bearer tok-8Z1/x+=",
            ),
            answered(r#"{"again":"tok-8Z1/x+="}"#),
        ),
        entry(
            1_005,
            post(
                "http://a/orders",
                "application/json",
                r#"{"sku":"a1b2c3","n":42}"#,
            ),
            created,
        ),
        entry(1_200, get("http://a/orders/o-77123?k=1"), answered("{}")),
        entry(1_300, get("http://a/orders/o-77123/lines"), answered("{}")),
    ]);
    let (plan, imported) = plan(&text);
    let first = step(&plan, 0);
    assert_eq!(
        first["take"]["access_token"].as_str(),
        Some("/access_token")
    );
    assert_eq!(first["take"]["user_id"].as_str(), Some("/user/id"));
    assert_eq!(first["take"]["sku"].as_str(), Some("/list/0/sku"));
    assert!(
        imported.plan.contains("# `sku` is the item of a list"),
        "{}",
        imported.plan
    );
    let second = step(&plan, 1);
    assert_eq!(
        second["path"].as_str(),
        Some("/users/{{user_id}}?t={{access_token}}")
    );
    assert_eq!(
        second["headers"]["authorization"].as_str(),
        Some("Bearer {{access_token}}")
    );
    assert_eq!(second["pause"].as_str(), Some("990ms"));
    assert!(!second.contains_key("take"));
    let third = step(&plan, 2);
    // 42 is sent as a number of something else.
    assert_eq!(third["body"].as_str(), Some(r#"{"sku":"{{sku}}","n":42}"#));
    assert!(
        !third.contains_key("pause"),
        "it began before the end of the one before"
    );
    assert_eq!(
        third["take"]["location"]["regex"].as_str(),
        Some("^https?://[^/]+(/[^#]*)")
    );
    assert_eq!(step(&plan, 3)["path"].as_str(), Some("{{location}}"));
    assert_eq!(
        step(&plan, 4)["path"].as_str(),
        Some("/orders/{{order_id}}/lines")
    );
}

#[test]
fn values_that_users_sent_first_are_not_taken() {
    let text = archive(&[
        entry(
            0,
            get("http://a/find?q=tok-12345678"),
            answered(r#"{"token":"tok-12345678","page":"2"}"#),
        ),
        entry(10, get("http://a/next/tok-12345678?page=2"), answered("{}")),
    ]);
    let (plan, _) = plan(&text);
    assert_eq!(
        step(&plan, 1)["path"].as_str(),
        Some("/next/tok-12345678?page=2")
    );
}

#[test]
fn page_values_are_taken_by_expressions() {
    let page = "<form><input value='v-1' name='a'><input type=\"hidden\" name=\"csrf\" value=\"aB+/9xyz==\">\n\
                <meta name=\"x\" content=\"c-998877\"></form><a href=\"/item/f00-8812\">x</a>\
                <script>var key = \"js-55667788\";</script>";
    let text = archive(&[
        entry(0, get("http://a/"), answered(page)),
        entry(
            10,
            with_header(
                post("http://a/send", FORM, "csrf=aB%2B%2F9xyz%3D%3D&m=c-998877"),
                "x-key",
                "js-55667788",
            ),
            answered("{}"),
        ),
        entry(20, get("http://a/item/f00-8812"), answered("{}")),
    ]);
    let (plan, _) = plan(&text);
    let takes = step(&plan, 0)["take"].as_table().expect("takes");
    let expression = |name: &str| takes[name]["regex"].as_str().expect("a regex").to_owned();
    assert_eq!(expression("csrf"), "name=\"csrf\"[^>]*value=\"([^\"]+)");
    assert_eq!(expression("item"), "/item/([^\"]+)");
    let send = step(&plan, 1);
    assert_eq!(send["body"].as_str(), Some("csrf={{csrf}}&m={{x}}"));
    assert_eq!(send["headers"]["x-key"].as_str(), Some("{{x_key}}"));
    assert_eq!(step(&plan, 2)["path"].as_str(), Some("/item/{{item}}"));
    for (name, value) in [
        ("csrf", "aB+/9xyz=="),
        ("item", "f00-8812"),
        ("x_key", "js-55667788"),
    ] {
        let found = regex::Regex::new(&expression(name)).expect("a regex");
        assert_eq!(&found.captures(page).expect("a match")[1], value, "{name}");
    }
}

#[test]
fn secrets_never_get_into_plan() {
    let jwt = format!("eyJ{}.{}.sig", "a".repeat(20), "b".repeat(20));
    let text = archive(&[
        entry(
            0,
            with_header(
                with_header(
                    post(
                        "http://a/login?api_key=q-secret-1",
                        FORM,
                        "user=ada&password=p%26w-secret&pin=77",
                    ),
                    "X-Api-Key",
                    "h-secret-2",
                ),
                "Cookie",
                "seen=c-secret-3; _ga=GA1.2",
            ),
            with_header(
                answered("{}"),
                "Set-Cookie",
                "sid=s-111111; Path=/\nlang=de",
            ),
        ),
        entry(
            10,
            with_header(
                with_header(
                    post(
                        "http://a/b",
                        "application/json",
                        &format!(r#"{{"a":{{"newPassword":"j-secret-4"}},"n":"{jwt}"}}"#),
                    ),
                    "Authorization",
                    "Basic dXNlcjpzZWNyZXQ=",
                ),
                "Cookie",
                "sid=s-111111; seen=c-secret-3",
            ),
            answered("{}"),
        ),
        entry(
            20,
            with_header(get("http://a/c"), "Cookie", "sid=s-111111; lang=de"),
            answered("{}"),
        ),
    ]);
    let (plan, imported) = plan(&text);
    for secret in [
        "secret", "p%26w", "77\"", "dXNlcjpz", &*jwt, "s-111111", "GA1.2",
    ] {
        let text = imported.plan.replace("Secrets", "").replace("SECRET", "");
        assert!(!text.contains(secret), "{secret}: {}", imported.plan);
    }
    assert_eq!(
        imported.variables,
        ["SHOP_API_KEY", "SHOP_AUTHORIZATION", "SHOP_X_API_KEY"]
    );
    assert_eq!(
        imported.columns,
        ["cookie_seen", "n", "new_password", "password", "pin"]
    );
    assert_eq!(
        step(&plan, 0)["path"].as_str(),
        Some("/login?api_key=$SHOP_API_KEY")
    );
    assert_eq!(
        step(&plan, 0)["body"].as_str(),
        Some("user=ada&password={{row.password}}&pin={{row.pin}}")
    );
    // A cookie field of its own has those of the journey, too.
    assert_eq!(
        step(&plan, 1)["headers"]["cookie"].as_str(),
        Some("sid={{sid}}; seen={{row.cookie_seen}}")
    );
    assert_eq!(
        step(&plan, 0)["take"]["sid"]["cookie"].as_str(),
        Some("sid")
    );
    assert!(
        step(&plan, 2).get("headers").is_none(),
        "the journey sends cookies that were set"
    );
    assert!(
        imported.notes.iter().any(|note| note.contains("_ga")),
        "{:?}",
        imported.notes
    );
}

#[test]
fn unrelated_entries_are_left_out_and_counted() {
    let mut blocked = answered("");
    blocked["_error"] = "net::ERR_BLOCKED_BY_CLIENT".into();
    let mut aborted = answered("");
    aborted["status"] = 0.into();
    let mut failed = answered("");
    failed["status"] = 503.into();
    let mut preflight = with_header(get("http://a/x"), "Access-Control-Request-Method", "PUT");
    preflight["method"] = "OPTIONS".into();
    let entries = [
        entry(0, get("http://a/1"), answered("{}")),
        entry(
            0,
            get("http://a/2"),
            json!({"status": 404, "headers": [], "content": {}}),
        ),
        entry(0, get("http://a/style.css?v=1"), answered("")),
        entry(0, get("https://b/"), answered("")),
        entry(0, get("data:text/plain,x"), answered("")),
        entry(0, get("ws://a/socket"), answered("")),
        entry(0, get("http://a/3"), blocked),
        entry(0, get("http://a/4"), aborted),
        entry(0, get("http://a/5"), failed),
        entry(0, preflight, answered("")),
    ];
    let text = archive(&entries);
    let (plan, imported) = plan(&text);
    assert_eq!(plan["steps"].as_array().expect("steps").len(), 2);
    assert_eq!(
        step(&plan, 1)["expect"].as_array().expect("statuses"),
        &[404.into()]
    );
    let left_out = imported
        .notes
        .iter()
        .find(|note| note.starts_with("left out"));
    let left_out = left_out.expect("a note");
    for part in [
        "1 asset (--with-assets keeps it)",
        "1 of another site (https://b): --all-origins keeps it",
        "1 data: URL or",
        "1 WebSocket;",
        "2 failed, blocked or aborted",
        "1 answered by an error",
        "1 preflight of a browser",
    ] {
        assert!(left_out.contains(part), "{part}: {left_out}");
    }
    let with_assets = PlanImportRequest {
        with_assets: true,
        ..request(&text)
    };
    assert!(
        import_with(&with_assets)
            .expect("a plan")
            .plan
            .contains("/style.css?v=1")
    );
    let other = PlanImportRequest {
        origin: Some("https://B"),
        ..request(&text)
    };
    assert!(
        import_with(&other)
            .expect("a plan")
            .plan
            .contains("target = \"https://b\"")
    );
    let own = PlanImportRequest {
        origin: Some("http://a"),
        ..request(&text)
    };
    let notes = import_with(&own).expect("a plan").notes.join("\n");
    assert!(notes.contains("1 of another origin (https://b)"), "{notes}");
    let unknown = PlanImportRequest {
        origin: Some("http://c"),
        ..request(&text)
    };
    let problem = import_with(&unknown).expect_err("no such origin");
    assert!(problem.contains("only to http://a ("), "{problem}");
}

#[test]
fn odd_recordings_are_rejected_by_entry_and_key() {
    let good = entry(0, get("http://a/"), answered("{}"));
    let mut no_url = good.clone();
    no_url["request"]
        .as_object_mut()
        .expect("a request")
        .remove("url");
    let mut wrong_status = good.clone();
    wrong_status["response"]["status"] = "ok".into();
    for (bad, expected) in [
        (no_url, "entry 2, request: missing field `url`"),
        (wrong_status, "entry 2, response.status: invalid type"),
        (
            entry(0, get("http://"), answered("")),
            "entry 2, request.url: `http://` is not a URL",
        ),
        (
            entry(0, get("nothing"), answered("")),
            "entry 2, request.url: `nothing` is not a URL",
        ),
        (json!(7), "entry 2, itself: invalid type"),
    ] {
        let problem = import(&archive(&[good.clone(), bad])).expect_err(expected);
        assert!(problem.starts_with(expected), "{problem}");
    }
    let text = archive(std::slice::from_ref(&good));
    for end in 10..text.len() {
        let problem = import(&text[..end]).expect_err("cut off");
        assert!(
            problem.contains("cut off") || problem == "not recognised",
            "{problem}"
        );
    }
    let empty = import(&archive(&[])).expect_err("no entries");
    assert!(empty.contains("none of its 0 requests"), "{empty}");
}

#[test]
fn wrong_base64_only_loses_the_body() {
    let mut answer = answered("%%%");
    answer["content"]["encoding"] = "base64".into();
    let text = archive(&[entry(0, get("http://a/"), answer)]);
    let (_, imported) = plan(&text);
    assert!(imported.notes[0].starts_with("entry 1, response.content.text: not base64"));
}

#[test]
fn recorded_bytes_are_sent_unchanged() {
    let body = "{\"t\":\"{{x}} '''\\u0000 \u{e9}\"}\r\n";
    let text = archive(&[
        entry(
            0,
            get("http://a/x?{{y}}=%7b{{{"),
            answered(r#"{"token":"abcdef123"}"#),
        ),
        entry(
            5,
            with_header(
                post("http://a/", "text/x", &format!("{{{{{{abcdef123{body}")),
                "x-a",
                "{{z}}",
            ),
            answered("{}"),
        ),
    ]);
    let (plan, _) = plan(&text);
    assert_eq!(step(&plan, 0)["path"].as_str(), Some("/x?{{{{y}}=%7b{{{{{"));
    assert_eq!(step(&plan, 1)["headers"]["x-a"].as_str(), Some("{{{{z}}"));
    let written = step(&plan, 1)["body"].as_str().expect("a body");
    // A brace before a field would be read as a part of it, so the value is sent as it was.
    assert_eq!(
        written.replace("{{{{", "{{"),
        format!("{{{{{{abcdef123{body}")
    );
}

#[test]
fn large_recordings_are_bounded() {
    let entries: Vec<Value> = (0..20_000)
        .map(|n| {
            let list: Vec<u64> = (0..10).map(|i| n * 100 + i + 100_000).collect();
            entry(
                0,
                get(&format!("http://a/{n}/{}", n * 100 + 100_000)),
                answered(&json!({"ids": list}).to_string()),
            )
        })
        .collect();
    let text = archive(&entries);
    let (plan, imported) = plan(&text);
    assert_eq!(plan["steps"].as_array().expect("steps").len(), 200);
    assert!(
        imported
            .notes
            .iter()
            .any(|note| note.contains("19,800 behind the first 200"))
    );
}
