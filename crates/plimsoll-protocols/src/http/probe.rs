//! Recognises HTTP services by their responses, by a description (OpenAPI) at a usual path, and by the list of models
//! of a language model's API.

use std::collections::BTreeMap;
use std::time::Duration;

use plimsoll_model::formats::units::Period;
use plimsoll_model::spec::{CallSpec, OptionalPeriod, ResolveContext, Spec, resolve};
use serde_json::Value;

use super::call::HttpCall;
use super::redirects::{ProbeAnswer, request_once};
use super::section::HttpSpec;
use crate::interface::server_query::QueryContext;
use crate::interface::service_offer::{OfferDetail, OfferedCall, ServiceOffer, candidate_urls};

/// The time limit for a connection attempt, and for the response to a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// The maximum size of a description that is read, in bytes.
const MAX_DESCRIPTION_BYTES: usize = 4 << 20;

/// Usual paths of descriptions, most common first.
const DESCRIPTION_PATHS: [&str; 4] = [
    "/openapi.json",
    "/swagger.json",
    "/v3/api-docs",
    "/api/openapi.json",
];

/// Returns the service at `address`; `None` if nothing there responds over HTTP.
pub(super) fn probe(address: &str, asking: QueryContext<'_>) -> Option<ServiceOffer> {
    let (url, answer) = find_responding_url(address, asking)?;
    let root = without_path(&url);
    let described = DESCRIPTION_PATHS.into_iter().find_map(|path| {
        let answer = probe_url(&format!("{root}{path}"), asking)?;
        let calls = list_operations(&root, &answer.body);
        (answer.status == 200 && !calls.is_empty()).then_some((path, calls))
    });
    if let Some((path, calls)) = described {
        return Some(ServiceOffer {
            detail: OfferDetail::Calls,
            service: format!("HTTP, with these operations that only read (OpenAPI at {path})"),
            calls,
        });
    }
    Some(ServiceOffer {
        detail: OfferDetail::Protocol,
        service: format!("HTTP, which answers {} to GET", answer.status),
        calls: vec![OfferedCall {
            name: format!("GET {url}"),
            words: vec![url],
            content: None,
        }],
    })
}

/// Returns the models that the service at `address` lists; `None` if it lists none.
pub(super) fn probe_models(address: &str, asking: QueryContext<'_>) -> Option<ServiceOffer> {
    candidate_urls(address, ["http", "https"])
        .iter()
        .find_map(|url| {
            let root = without_path(url);
            let answer = probe_url(&format!("{root}/v1/models"), asking)?;
            let models = list_models(&answer.body);
            let calls: Vec<OfferedCall> = models
                .into_iter()
                .map(|model| OfferedCall {
                    words: vec![root.clone(), "--model".to_owned(), model.clone()],
                    content: None,
                    name: model,
                })
                .collect();
            (answer.status == 200 && !calls.is_empty()).then(|| ServiceOffer {
                detail: OfferDetail::Purpose,
                service: "a language model behind OpenAI's API, with these models".to_owned(),
                calls,
            })
        })
}

/// Returns the URL without its path.
fn without_path(url: &str) -> String {
    let begin = url.find("://").map_or(0, |at| at + 3);
    let end = url[begin..]
        .find(['/', '?', '#'])
        .map_or(url.len(), |at| begin + at);
    url[..end].to_owned()
}

fn find_responding_url(address: &str, asking: QueryContext<'_>) -> Option<(String, ProbeAnswer)> {
    let urls = candidate_urls(address, ["http", "https"]);
    urls.into_iter().find_map(|url| {
        let answer = probe_url(&url, asking)?;
        Some((url, answer))
    })
}

/// Requests `url` once. Returns `None` if there is no response.
fn probe_url(url: &str, asking: QueryContext<'_>) -> Option<ProbeAnswer> {
    let mut spec = Spec {
        target: Some(url.to_owned()),
        call: CallSpec::from_section(&HttpSpec::default()).ok()?,
        ..Spec::default()
    };
    (spec.load.clients, spec.load.calls) = (Some(1), Some(1));
    spec.load.connect_timeout = Some(Period(REQUEST_TIMEOUT));
    spec.load.deadline = Some(OptionalPeriod::After(Period(REQUEST_TIMEOUT)));
    let surroundings: &dyn ResolveContext = asking.surroundings;
    let plan = resolve(&spec, surroundings).ok()?;
    let call = plan.call.downcast_ref::<HttpCall>()?;
    request_once(&plan, call, MAX_DESCRIPTION_BYTES).ok()
}

/// Returns the GET operations of a description that need no parameters.
fn list_operations(root: &str, body: &[u8]) -> Vec<OfferedCall> {
    let Ok(Value::Object(document)) = serde_json::from_slice(body) else {
        return Vec::new();
    };
    let is_description = ["openapi", "swagger"]
        .iter()
        .any(|key| document.contains_key(*key));
    let paths = document.get("paths").and_then(Value::as_object);
    let Some(paths) = paths.filter(|_| is_description) else {
        return Vec::new();
    };
    // The order of paths in a description is arbitrary, so they are sorted.
    let paths: BTreeMap<&String, &Value> = paths.iter().collect();
    let reads = paths.into_iter().filter(|(path, item)| {
        let get = item.get("get");
        let parameters = get
            .and_then(|get| get.get("parameters"))
            .and_then(Value::as_array);
        let is_required = |parameter: &Value| parameter.get("required") == Some(&Value::Bool(true));
        let needs_any = parameters.is_some_and(|all| all.iter().any(is_required));
        get.is_some() && !needs_any && !path.contains('{')
    });
    let calls = reads.map(|(path, _)| OfferedCall {
        name: format!("GET {path}"),
        words: vec![format!("{root}{path}")],
        content: None,
    });
    calls.collect()
}

/// Returns the names of the models in a list (`GET /v1/models`).
fn list_models(body: &[u8]) -> Vec<String> {
    let list: Value = serde_json::from_slice(body).unwrap_or_default();
    let models = list.get("data").and_then(Value::as_array);
    let names = models.into_iter().flatten();
    names
        .filter_map(|model| model.get("id")?.as_str().map(str::to_owned))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_offer_operations_without_parameters() {
        let body = br#"{"openapi":"3.1.0","paths":{"/b":{"get":{}},"/a":{"get":{"parameters":[{"required":false}]}},
            "/c/{id}":{"get":{}},"/d":{"post":{}},"/e":{"get":{"parameters":[{"required":true}]}}}}"#;
        let offered = list_operations("http://h:1", body);
        let names: Vec<&str> = offered.iter().map(|call| call.name.as_str()).collect();
        assert_eq!(names, ["GET /a", "GET /b"]);
        assert_eq!(offered[0].words, ["http://h:1/a"]);
        for body in ["{}", "[1]", "x", r#"{"paths":{"/a":{"get":{}}}}"#] {
            assert!(
                list_operations("http://h:1", body.as_bytes()).is_empty(),
                "{body}"
            );
        }
    }

    #[test]
    fn model_lists_are_read() {
        let body =
            br#"{"object":"list","data":[{"id":"a"},{"id":"b","object":"model"},{"name":"c"}]}"#;
        assert_eq!(list_models(body), ["a", "b"]);
        assert!(list_models(b"[]").is_empty());
        assert_eq!(without_path("http://h:1/a?b"), "http://h:1");
        assert_eq!(without_path("https://h"), "https://h");
    }
}
