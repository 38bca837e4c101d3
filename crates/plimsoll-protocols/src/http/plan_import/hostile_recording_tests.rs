//! Tests of recordings with secrets in unusual places, with non-ASCII pages, and of extreme sizes.

use serde_json::json;

use super::tests::{answered, archive, entry, get, plan, post, step, with_header};

#[test]
fn secrets_in_forms_and_headers_are_left_out() {
    let text = "--7\r\nContent-Disposition: form-data; name=\"password\"\r\n\r\nhush-1\r\n--7\r\n\
                Content-Disposition: form-data; name=\"note\"\r\n\r\nhello\r\n--7--\r\n";
    let mut parts = post("http://a/parts", "multipart/form-data; boundary=7", "");
    parts["postData"]["params"] = json!([
        {"name": "password", "value": "hush-2"},
        {"name": "photo", "fileName": "/etc/passwd"},
    ]);
    let form = post("http://a/form", "multipart/form-data; boundary=7", text);
    let form = with_header(form, "Referer", "http://a/reset?token=hush-3");
    let login = with_header(get("http://a/in"), "X-GitHub-OTP", "1234567");
    let entries = [form, parts, login].map(|request| entry(0, request, answered("{}")));
    let (plan, imported) = plan(&archive(&entries));
    for secret in ["hush-", "1234567", "/etc"] {
        assert!(
            !imported.plan.contains(secret),
            "{secret}: {}",
            imported.plan
        );
    }
    let body = step(&plan, 0)["body"].as_str().expect("a body");
    assert!(
        body.contains("{{row.password}}") && body.contains("hello"),
        "{body}"
    );
    assert!(
        imported.plan.contains("file = \"passwd\""),
        "{}",
        imported.plan
    );
}

#[test]
fn pages_with_non_ascii_text_are_searched() {
    let page = "<p>Commande n°\u{a0}:AB12CD34</p><script>s={\"a\":\"k3J9x0Pq11\",\"nonce\":\"Zx81kQ27aa\"}</script>";
    let sent = post(
        "http://a/orders/AB12CD34",
        "application/x-www-form-urlencoded",
        "n=Zx81kQ27aa",
    );
    let entries = [
        entry(0, get("http://a/"), answered(page)),
        entry(500, sent, answered("{}")),
    ];
    let (_, imported) = plan(&archive(&entries));
    // The expression that extracts the nonce must not contain the neighbouring value, which changes too.
    assert!(!imported.plan.contains("k3J9x0Pq11"), "{}", imported.plan);
    assert!(imported.plan.contains("n={{"), "{}", imported.plan);
}

#[test]
fn long_keys_and_many_tags_take_linear_time() {
    let key = "K".repeat(20_000);
    let numbers = vec!["0"; 20_000].join(",");
    let tags = "<input value=\"b1\" name=\"a1\">".repeat(8_000);
    let entries = [
        entry(
            0,
            get("http://a/"),
            answered(&format!("{{\"{key}\":[{numbers}]}}")),
        ),
        entry(500, get("http://a/b"), answered(&tags)),
    ];
    let (plan, _) = plan(&archive(&entries));
    assert_eq!(plan["steps"].as_array().map(Vec::len), Some(2));
}
