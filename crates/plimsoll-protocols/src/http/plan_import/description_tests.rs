//! Tests of plans that are imported from descriptions of services (OpenAPI) and from curl command lines.

use serde_json::{Value, json};
use toml::Table;

use super::tests::{import, import_with, plan, request, step};
use crate::interface::protocol_module::PlanImportRequest;

fn description() -> Value {
    json!({
        "openapi": "3.1.0",
        "info": {"title": "Shop"},
        "servers": [{"url": "https://{host}/v1/", "variables": {"host": {"default": "shop.example"}}}],
        "security": [{"key": []}],
        "components": {
            "securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"}},
            "parameters": {"page": {"name": "page", "in": "query", "schema": {"$ref": "#/components/schemas/Page"}}},
            "schemas": {
                "Page": {"type": "integer", "default": 1},
                "Order": {"type": "object", "required": ["item", "lines", "self", "kind"], "properties": {
                    "item": {"type": "integer", "minimum": 5},
                    "kind": {"enum": ["a", "b"]},
                    "self": {"$ref": "#/components/schemas/Order"},
                    "lines": {"type": "array", "minItems": 2, "items": {"type": "string", "format": "uuid"}},
                    "note": {"type": "string"}
                }}
            }
        },
        "paths": {
            "/items": {"get": {"operationId": "items", "security": [{}], "parameters": [
                {"$ref": "#/components/parameters/page"},
                {"name": "tag", "in": "query", "example": ["a b", "c"]},
                {"name": "deep", "in": "query", "style": "deepObject", "example": {"k": 1}},
                {"name": "q", "in": "query", "schema": {"type": "string"}}
            ]}},
            "/items/{item_id}": {
                "parameters": [{"name": "item_id", "in": "path", "required": true, "schema": {"type": "integer"}}],
                "get": {"summary": "One item"},
                "delete": {"operationId": "drop", "parameters": [
                    {"name": "item_id", "in": "path", "required": true, "example": "x/y"}]}
            },
            "/orders": {"post": {"operationId": "order", "requestBody": {"content": {
                "application/json": {"schema": {"$ref": "#/components/schemas/Order"}}}}}},
            "/old": {"get": {"deprecated": true}}
        }
    })
}

#[test]
fn operations_become_weighted_steps() {
    let text = description().to_string();
    let imported = import(&text).expect("a plan");
    let plan: Table = imported.plan.parse().expect("TOML");
    assert_eq!(plan["target"].as_str(), Some("https://shop.example"));
    let steps = plan["steps"].as_array().expect("steps");
    assert_eq!(steps.len(), 2, "{}", imported.plan);
    assert_eq!(
        step(&plan, 0)["path"].as_str(),
        Some("/v1/items?page=1&tag=a%20b&tag=c&deep%5Bk%5D=1")
    );
    assert!(
        step(&plan, 0).get("headers").is_none(),
        "it may be called without a key"
    );
    assert_eq!(
        step(&plan, 1)["path"].as_str(),
        Some("/v1/items/{{VALUE-OF-item_id}}")
    );
    assert_eq!(
        step(&plan, 1)["headers"]["x-api-key"]["env"].as_str(),
        Some("SHOP_X_API_KEY")
    );
    assert!(
        imported
            .notes
            .iter()
            .any(|note| note.starts_with("item_id of GET /items/{item_id}")),
        "{:?}",
        imported.notes
    );
    assert!(
        imported
            .notes
            .iter()
            .any(|note| note.contains("1 optional parameter without"))
    );
}

#[test]
fn chosen_operations_have_bodies_by_schema() {
    let text = description().to_string();
    let operations = ["order".to_owned(), "DELETE /items/{item_id}".to_owned()];
    let chosen = PlanImportRequest {
        operations: &operations,
        ..request(&text)
    };
    let imported = import_with(&chosen).expect("a plan");
    let plan: Table = imported.plan.parse().expect("TOML");
    let body = step(&plan, 0)["body"].as_str().expect("a body");
    let body: Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(body["item"], 5);
    assert_eq!(body["kind"], "a");
    assert!(body.get("note").is_none(), "only what is required");
    assert_eq!(step(&plan, 1)["path"].as_str(), Some("/v1/items/x%2Fy"));
    let unknown = ["unknown".to_owned()];
    let unknown = PlanImportRequest {
        operations: &unknown,
        ..request(&text)
    };
    let problem = import_with(&unknown).expect_err("no such operation");
    assert!(problem.contains("items, GET /items/{item_id}"), "{problem}");
}

#[test]
fn odd_descriptions_are_rejected() {
    let mut relative = description();
    relative["servers"] = json!([{"url": "/api"}]);
    let mut empty = description();
    empty["paths"] = json!({});
    for (description, expected) in [
        (json!({"swagger": "2.0"}), "swagger: version 2.0"),
        (json!({"openapi": "4.0.0"}), "openapi: `4.0.0`"),
        (
            relative,
            "servers: no URL with a host: add --origin, such as --origin http://127.0.0.1:8000/api",
        ),
        (empty, "paths: no operation of GET"),
    ] {
        let problem = import(&description.to_string()).expect_err(expected);
        assert!(problem.starts_with(expected), "{problem}");
    }
    let mut circle = description();
    circle["components"]["schemas"]["Page"] = json!({"$ref": "#/components/schemas/Page"});
    assert!(import(&circle.to_string()).is_ok());
}

#[test]
fn curl_lines_become_steps() {
    let text = "curl 'https://a/items?page=1' \\\n  -H 'accept: application/json' \\\n  -H 'user-agent: x' \\\n  -b 'sid=abc' \\\n  --compressed ;\n\
                curl 'https://a/login' -H 'content-type: application/json' -d $'{\"password\":\"it\\'s\"}' --insecure\n\
                curl -u me:pw https://a/app.js\n";
    let (plan, imported) = plan(text);
    assert_eq!(plan["target"].as_str(), Some("https://a"));
    let first = step(&plan, 0);
    assert_eq!(first["path"].as_str(), Some("/items?page=1"));
    assert_eq!(
        first["headers"]["accept"].as_str(),
        Some("application/json")
    );
    assert_eq!(
        first["headers"]["cookie"].as_str(),
        Some("sid={{row.cookie_sid}}")
    );
    let second = step(&plan, 1);
    assert_eq!(second["name"].as_str(), Some("POST /login"));
    assert_eq!(
        second["body"].as_str(),
        Some("{\"password\":\"{{row.password}}\"}")
    );
    assert!(
        imported
            .notes
            .iter()
            .any(|note| note.contains("line 6: `--insecure`")),
        "{:?}",
        imported.notes
    );
    for (text, expected) in [
        ("curl 'http://a", "line 1: a quote is not closed"),
        ("curl http://a\nwget http://a", "line 2: `wget` is not curl"),
        ("curl -y http://a", "line 1: curl has no flag"),
        ("curl -d @x http://a", "line 1: -d @x"),
        (
            "curl ^\"http://a^\" ^\n  -H ^\"a: b^\"",
            "these lines are for cmd.exe",
        ),
    ] {
        let problem = import(text).expect_err(text);
        assert!(problem.starts_with(expected), "{problem}");
    }
}

/// The description of [`description`] in YAML, with comments and YAML shorthand.
const YAML_DESCRIPTION: &str = r##"# The shop.
openapi: 3.1.0
info: {title: Shop}
servers:
  - url: https://{host}/v1/
    variables: {host: {default: shop.example}}
security: [{key: []}]
paths:
  /items:
    get:
      operationId: items
      security: [{}]
      parameters:
        - $ref: '#/components/parameters/page'
        - {name: tag, in: query, example: [a b, c]}
        - {name: deep, in: query, style: deepObject, example: {k: 1}}
        - {name: q, in: query, schema: {type: string}}
      responses: {200: {description: the items}}
  /items/{item_id}:
    parameters: &id
      - {name: item_id, in: path, required: true, schema: {type: integer}}
    get: {summary: One item}
    delete:
      operationId: drop
      parameters: [{name: item_id, in: path, required: true, example: x/y}]
  /orders:
    post:
      operationId: order
      requestBody: {content: {application/json: {schema: {$ref: "#/components/schemas/Order"}}}}
  /old: {get: {deprecated: true}}
components:
  securitySchemes: {key: {type: apiKey, in: header, name: X-Api-Key}}
  parameters:
    page: {name: page, in: query, schema: {$ref: '#/components/schemas/Page'}}
  schemas:
    Page: {type: integer, default: 1}
    Order:
      type: object
      required: [item, lines, self, kind]
      properties:
        item: {type: integer, minimum: 5}
        kind: {enum: [a, b]}
        self: {$ref: '#/components/schemas/Order'}
        lines: {type: array, minItems: 2, items: {type: string, format: uuid}}
        note: {type: string}
"##;

#[test]
fn yaml_and_json_make_same_plan() {
    let json = description().to_string();
    let operations = ["items", "drop", "order", "GET /items/{item_id}"].map(str::to_owned);
    for operations in [&[][..], &operations[..]] {
        let of = |text| {
            let chosen = PlanImportRequest {
                operations,
                ..request(text)
            };
            let imported = import_with(&chosen).expect("a plan");
            (imported.plan, imported.notes, imported.variables)
        };
        assert_eq!(of(YAML_DESCRIPTION), of(&json));
    }
}

#[test]
fn broken_yaml_is_rejected_by_line_and_column() {
    let broken = YAML_DESCRIPTION.replace("      security: [{}]", "      security: [{}");
    let problem = import(&broken).expect_err("not YAML");
    assert!(problem.starts_with("line 13, column "), "{problem}");
    let version = YAML_DESCRIPTION.replace("openapi: 3.1.0", "openapi: 3.1");
    assert!(import(&version).is_ok());
    let old = YAML_DESCRIPTION.replace("openapi: 3.1.0", "swagger: '2.0'");
    let problem = import(&old).expect_err("too old");
    assert!(problem.starts_with("swagger: version 2.0"), "{problem}");
}

#[test]
fn script_errors_suggest_a_recording() {
    let script = "import http from 'k6/http';\nexport default function () {}\n";
    assert!(
        import(script)
            .expect_err("a script")
            .contains("plimsoll import recording.har")
    );
}

#[test]
fn notes_use_singular_for_one() {
    let text = description().to_string();
    let operations = ["items".to_owned()];
    let one = PlanImportRequest {
        operations: &operations,
        ..request(&text)
    };
    let imported = import_with(&one).expect("a plan");
    assert!(
        imported.notes[0].starts_with("1 operation became a step to "),
        "{:?}",
        imported.notes
    );
    let imported = import("curl http://a/\n").expect("a plan");
    assert_eq!(
        imported.notes[0],
        "1 of 1 request of the recording became a step to http://a, which takes 0 values from answers"
    );
}
