//! Tests of recordings whose secrets are not plain fields of forms or JSON: within XML and other values, and in paths.

use super::tests::{answered, archive, entry, get, plan, post, step, with_header};

const OPAQUE_TOKEN: &str = "q7Rk2XvB9mLp4TzN8sWc1YhD6fJg3aQe";

#[test]
fn secrets_in_xml_become_columns() {
    let soap = "<s:Envelope xmlns:s=\"urn:s\"><s:Header><w:UsernameToken><w:Username>ada</w:Username>\
                <w:Password Type=\"t#PasswordText\">hush&amp;1</w:Password></w:UsernameToken></s:Header>\
                <s:Body apiKey='k-hush-2'><Note>hello</Note></s:Body></s:Envelope>";
    let rpc = "<methodCall><params><member><name>pin</name><value><string>hush3</string></value></member></params></methodCall>";
    let requests = [
        post("http://a/soap", "text/xml; charset=utf-8", soap),
        post("http://a/rpc", "application/xml", rpc),
    ];
    let (plan, imported) = plan(&archive(&requests.map(|r| entry(0, r, answered("{}")))));
    assert!(!imported.plan.contains("hush"), "{}", imported.plan);
    assert_eq!(imported.columns, ["api_key", "password", "pin"]);
    let body = step(&plan, 0)["body"].as_str().expect("a body");
    assert!(body.contains(">{{row.password}}</w:Password>"), "{body}");
    assert!(
        body.contains("<Note>hello</Note>") && body.contains("ada"),
        "{body}"
    );
}

#[test]
fn secrets_within_other_values_become_columns() {
    let operations = r#"{"query":"mutation($p: String!) { login(user: \"ada\", password: \"hush-1\", pin: $p) { id } }","variables":"{\"secret\":\"hush-2\",\"page\":1}"}"#;
    let form = "operations=%7B%22passcode%22%3A%22hush-3%22%2C%22n%22%3A%22kept%22%7D&x=1";
    let requests = [
        post("http://a/graphql", "application/json", operations),
        post("http://a/f", "application/x-www-form-urlencoded", form),
        get("http://a/q?variables=%7B%22password%22:%22hush-4%22%7D&n=2"),
        post("http://a/b", "text/plain", "user=ada&password=hush-5"),
        post(
            "http://a/l",
            "application/x-ndjson",
            "{\"n\":1}\n{\"otp\":\"hush-6\"}\n",
        ),
        post(
            "http://a/note",
            "application/json",
            &format!("{{\"note\":\"see {OPAQUE_TOKEN} please\"}}"),
        ),
    ];
    let (plan, imported) = plan(&archive(&requests.map(|r| entry(0, r, answered("{}")))));
    for secret in ["hush", OPAQUE_TOKEN] {
        assert!(!imported.plan.contains(secret), "{}", imported.plan);
    }
    assert_eq!(
        step(&plan, 0)["body"].as_str(),
        Some(
            r#"{"query":"mutation($p: String!) { login(user: \"ada\", password: \"{{row.password}}\", pin: $p) { id } }","variables":"{\"secret\":\"{{row.secret}}\",\"page\":1}"}"#
        )
    );
    assert_eq!(
        step(&plan, 1)["body"].as_str(),
        Some("operations=%7B%22passcode%22%3A%22{{row.passcode}}%22%2C%22n%22%3A%22kept%22%7D&x=1")
    );
    assert_eq!(
        step(&plan, 2)["path"].as_str(),
        Some("/q?variables=%7B%22password%22:%22{{row.password_2}}%22%7D&n=2")
    );
    assert_eq!(
        step(&plan, 5)["body"].as_str(),
        Some("{\"note\":\"see {{row.token}} please\"}")
    );
}

#[test]
fn tokens_in_paths_become_columns() {
    let reset = with_header(
        post("http://a/save", "application/json", "{}"),
        "Referer",
        "http://a/reset/hush-9f8a7b6c5d4e3f;jsessionid=HUSH77?token=hush",
    );
    let requests = [
        get("http://a/reset/hush-9f8a7b6c5d4e3f"),
        get("http://a/accounts/verify/MTY/hush-0a1b2c3d4e5f6a/"),
        get("http://a/verify/482913"),
        get(&format!("http://a/share/{OPAQUE_TOKEN}")),
        get("http://a/shop;jsessionid=HUSH7700;v=2/cart?page=1"),
        reset,
        get("http://a/verify/new"),
    ];
    let (plan, imported) = plan(&archive(&requests.map(|r| entry(0, r, answered("{}")))));
    for secret in ["hush", "HUSH", "482913", OPAQUE_TOKEN] {
        assert!(
            !imported.plan.contains(secret),
            "{secret}: {}",
            imported.plan
        );
    }
    let path = |nth| {
        step(&plan, nth)["path"]
            .as_str()
            .expect("a path")
            .to_owned()
    };
    assert_eq!(path(0), "/reset/{{row.reset_token}}");
    assert_eq!(path(1), "/accounts/verify/MTY/{{row.verify_token}}/");
    assert_eq!(path(2), "/verify/{{row.verify_token_2}}");
    assert_eq!(path(3), "/share/{{row.share_token}}");
    assert_eq!(
        path(4),
        "/shop;jsessionid={{row.jsessionid}};v=2/cart?page=1"
    );
    assert_eq!(path(6), "/verify/new");
}

#[test]
fn tokens_from_answers_are_captured() {
    let page =
        "<p>Follow <a href=\"/reset/9f8a7b6c5d4e3f00\">this link</a>: key: \"c5r2f-77x\"</p>";
    let sent = post(
        "http://a/in",
        "application/json",
        "{\"csrf_token\":\"c5r2f-77x\"}",
    );
    let moved = with_header(
        answered(""),
        "Location",
        "http://a/shop;jsessionid=AB12CD34",
    );
    let entries = [
        entry(0, get("http://a/mail"), answered(page)),
        entry(10, get("http://a/reset/9f8a7b6c5d4e3f00"), moved),
        entry(20, sent, answered("{}")),
        entry(30, get("http://a/cart;jsessionid=AB12CD34"), answered("{}")),
    ];
    let (plan, imported) = plan(&archive(&entries));
    assert!(imported.columns.is_empty(), "{}", imported.plan);
    assert_eq!(step(&plan, 1)["path"].as_str(), Some("/reset/{{reset}}"));
    assert_eq!(
        step(&plan, 2)["body"].as_str(),
        Some("{\"csrf_token\":\"{{csrf_token}}\"}")
    );
    assert_eq!(
        step(&plan, 3)["path"].as_str(),
        Some("/cart;jsessionid={{jsessionid}}")
    );
    assert_eq!(
        step(&plan, 1)["take"]["jsessionid"]["regex"].as_str(),
        Some(";jsessionid=([^;/?#]+)")
    );
}
