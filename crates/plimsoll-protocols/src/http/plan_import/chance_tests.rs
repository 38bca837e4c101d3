//! Tests that the import ignores values which recur by chance, and captures ids from an answer that later requests use.

use super::tests::{answered, archive, entry, get, plan, post, step};

/// Returns how many values the steps of a plan capture.
fn count_captured_values(plan: &toml::Table) -> usize {
    let steps = plan["steps"].as_array().expect("steps");
    let takes = steps.iter().filter_map(|step| step.get("take")?.as_table());
    takes.map(toml::Table::len).sum()
}

#[test]
fn common_values_are_not_captured_by_chance() {
    let answer = r#"{"page_id":1,"lang_id":"en","key":"true","year_number":2026,"state":"pending","code":"summer",
        "token_type":"Bearer","price_ref":"199.99","screen":"1920x1080","kind_key":"application/json","total_id":100000,
        "status":"awaiting_payment_confirmation","item":{"id":7}}"#;
    let sent = r#"{"category_id":1,"lang_id_2":"en","key":"true","from_number":2026,"state":"pending","code":"summer",
        "price":"199.99","size":"1920x1080","type":"application/json","amount":100000,
        "status":"awaiting_payment_confirmation","user_id":7}"#;
    let paths = [
        "/next/1?key=true&code=en&year=2026&state=pending&id=7",
        "/en/2026/summer",
    ];
    let mut entries = vec![
        entry(0, get("http://a/start"), answered(answer)),
        entry(
            10,
            post("http://a/x", "application/json", sent),
            answered("{}"),
        ),
    ];
    entries.extend(paths.map(|path| entry(20, get(&format!("http://a{path}")), answered("{}"))));
    let (plan, imported) = plan(&archive(&entries));
    assert_eq!(count_captured_values(&plan), 0, "{}", imported.plan);
    assert_eq!(step(&plan, 1)["body"].as_str(), Some(sent));
}

#[test]
fn short_ids_with_matching_field_names_are_captured() {
    let entries = [
        entry(
            0,
            post("http://a/api/v1/orders?page=1", "application/json", "{}"),
            answered(r#"{"data":{"id":1,"user":{"id":2},"line_ids":[3]}}"#),
        ),
        entry(
            10,
            get("http://a/api/v1/orders/1?user_id=2"),
            answered("{}"),
        ),
        entry(
            20,
            post(
                "http://a/pay",
                "application/json",
                r#"{"order":{"id":1},"user_no":2,"n":3}"#,
            ),
            answered("<form><input type=hidden name=\"id\" value=\"9\"></form>"),
        ),
        entry(
            30,
            post(
                "http://a/done",
                "application/x-www-form-urlencoded",
                "id=9&line_id=3&count=1",
            ),
            answered("{}"),
        ),
    ];
    let (plan, imported) = plan(&archive(&entries));
    assert_eq!(
        step(&plan, 1)["path"].as_str(),
        Some("/api/v1/orders/{{order_id}}?user_id={{user_id}}"),
        "{}",
        imported.plan
    );
    assert_eq!(
        step(&plan, 2)["body"].as_str(),
        Some(r#"{"order":{"id":{{order_id}}},"user_no":{{user_id}},"n":3}"#)
    );
    assert_eq!(
        step(&plan, 3)["body"].as_str(),
        Some("id={{id}}&line_id={{line_ids}}&count=1")
    );
}
