//! Imports plans from recordings of browsers and proxies (HAR), descriptions of services (OpenAPI), and curl command
//! lines.
//!
//! Each source is read into [`exchange::RecordedExchange`]s, and `selection` keeps those of one user. `steps` builds
//! a step from each; `correlation` finds values of earlier responses in it, and `secrets` finds values that must not be
//! in a plan. `draft` writes the plan.

mod answer_values;
mod correlation;
mod curl_lines;
mod draft;
mod exchange;
mod har;
mod json_leaves;
mod nested_values;
mod omissions;
mod openapi;
mod request_parts;
mod request_value;
mod secrets;
mod selection;
mod shell_words;
mod steps;
mod template_text;
mod value_classes;
mod xml_values;

use plimsoll_model::formats::quantity;

use draft::{PlanDraft, rows_file_name};
use secrets::SecretPlaceholders;
use selection::{RecordedTraffic, RequestSelection};

use crate::interface::protocol_module::{
    ForeignFormatError, PlanImportRequest, PlanImportResult, PlanSource,
};

/// The kinds of files from which plans can be imported.
pub(super) static PLAN_SOURCES: [PlanSource; 5] = [
    PlanSource {
        name: "a recording (HAR 1.2)",
        recognises: |text| first_key(text) == Some("log"),
        import: import_recording,
    },
    PlanSource {
        name: "a description of a service (OpenAPI)",
        recognises: |text| {
            let keys = ["\"openapi\"", "\"swagger\""];
            // If keys are sorted, `components` comes first, and may be longer than the part of the file that is
            // examined.
            let is_sorted = first_key(text) == Some("components");
            is_sorted || first_key(text).is_some() && keys.iter().any(|key| text.contains(key))
        },
        import: openapi::import_json,
    },
    PlanSource {
        name: "a description of a service (OpenAPI) in YAML",
        recognises: |text| {
            let keys = ["openapi", "swagger", "components"];
            text.lines().any(|line| {
                let key = line.split(':').next().unwrap_or_default().trim_end();
                line.contains(':') && keys.contains(&key.trim_matches(['"', '\'']))
            })
        },
        import: openapi::import_yaml,
    },
    PlanSource {
        name: "a script of k6",
        recognises: |text| {
            ["from 'k6", "from \"k6", "require('k6", "require(\"k6"]
                .iter()
                .any(|import| text.contains(import))
        },
        import: |_| Err(SCRIPT_HELP.into()),
    },
    PlanSource {
        name: "lines of curl",
        recognises: curl_lines::is_curl,
        import: import_curl_lines,
    },
];

const SCRIPT_HELP: &str = "it is a script of k6, and programs are not read. A plan has the same parts: each request is one \
    of the [[steps]], `check` is expect, expect_headers and expect_body, values of answers are bound by take, `sleep` is \
    pause, data files are [rows], `thresholds` are [objective], and `options` are [load]. A recording (HAR) that the \
    script was made from, or one that a browser saves, is imported: plimsoll import recording.har --out plan.toml";

/// Returns the first key of a JSON object. `text`: the beginning of the object.
fn first_key(text: &str) -> Option<&str> {
    let inside = text.trim_start().strip_prefix('{')?.trim_start();
    inside.strip_prefix('"')?.split('"').next()
}

/// Returns the message for a file that is not JSON of this format.
fn invalid_file_message<'a>(
    format: &'static str,
    text: &'a str,
) -> impl Fn(serde_json::Error) -> String + 'a {
    move |e| {
        if e.is_eof() || !text.trim_end().ends_with('}') {
            format!("the file is cut off ({e}): save it again")
        } else {
            format!("not {format}: {e}")
        }
    }
}

fn reject_operation_flags(request: &PlanImportRequest<'_>) -> Result<(), ForeignFormatError> {
    match request.operations.first() {
        Some(_) => {
            Err("--operation: only a description of a service (OpenAPI) has operations".into())
        }
        None => Ok(()),
    }
}

fn import_recording(
    request: &PlanImportRequest<'_>,
) -> Result<PlanImportResult, ForeignFormatError> {
    reject_operation_flags(request)?;
    let recording = har::read(request.text, RequestSelection::from_request(request))?;
    Ok(build_plan(request, recording))
}

fn import_curl_lines(
    request: &PlanImportRequest<'_>,
) -> Result<PlanImportResult, ForeignFormatError> {
    reject_operation_flags(request)?;
    let recording = curl_lines::read(request.text, RequestSelection::from_request(request))?;
    Ok(build_plan(request, recording))
}

/// Builds the plan from recorded requests.
fn build_plan(request: &PlanImportRequest<'_>, recording: RecordedTraffic) -> PlanImportResult {
    let list = steps::build_steps(request.name, &recording);
    let count = list.steps.len();
    let by = match &*recording.creator {
        "" => String::new(),
        creator => format!(" by {creator}"),
    };
    let mut notes = recording.notes.clone();
    let total = quantity::plural(recording.total as u64, "request");
    let (became, which_take) = if count == 1 {
        ("became a step", "which takes")
    } else {
        ("became steps", "which take")
    };
    notes.push(format!(
        "{} of {total} of the recording{by} {became} to {}, {which_take} {} from answers",
        quantity::count(count as u64),
        recording.origin,
        quantity::plural(list.taken as u64, "value")
    ));
    if !recording.other_origins.is_empty() {
        let (is, steps) = match recording.other_origins.len() {
            1 => ("is another target", "its"),
            _ => ("are other targets", "their"),
        };
        notes.push(format!(
            "{} {is}, and {steps} steps have a `target`: --origin {} leaves them out",
            recording.other_origins.join(", "),
            recording.origin
        ));
    }
    if !recording.left_out.is_empty() {
        notes.push(format!("left out: {}", recording.describe_left_out()));
    }
    if !list.counting_cookies.is_empty() {
        let names: Vec<&str> = list.counting_cookies.iter().map(String::as_str).collect();
        notes.push(format!(
            "left out: cookies that count visitors ({})",
            names.join(", ")
        ));
    }
    let is_http2 = recording.is_mostly_http2(&recording.origin);
    let draft = PlanDraft {
        comments: vec![
            format!("Imported from a recording{by}: {} of {total}.", quantity::count(count as u64)),
            "Values of answers are bound by `take` and sent as {{name}}. Check which of the other values each user".to_owned(),
            "should have of its own, such as names, amounts and dates.".to_owned(),
        ],
        target: recording.origin,
        is_http2,
        steps: list.steps,
        ..PlanDraft::default()
    };
    finish_import(request, draft, &list.secrets, notes)
}

/// Writes the plan, and collects the values that the user must supply before it runs.
fn finish_import(
    request: &PlanImportRequest<'_>,
    draft: PlanDraft,
    secrets: &SecretPlaceholders,
    mut notes: Vec<String>,
) -> PlanImportResult {
    let columns: Vec<String> = secrets.columns().map(str::to_owned).collect();
    let draft = PlanDraft {
        name: request.name.to_owned(),
        columns: columns.clone(),
        ..draft
    };
    let plan = draft.to_toml();
    for name in secrets.find_leaked_secrets(&plan) {
        notes.push(format!(
            "the value of {name} is in the plan at another place, too: look for it before you pass the plan on"
        ));
    }
    PlanImportResult {
        plan,
        notes,
        variables: secrets.variables().map(str::to_owned).collect(),
        rows_file: rows_file_name(request.name),
        columns,
    }
}

#[cfg(test)]
mod chance_tests;
#[cfg(test)]
mod description_tests;
#[cfg(test)]
mod hostile_recording_tests;
#[cfg(test)]
mod origin_tests;
#[cfg(test)]
mod secret_tests;
#[cfg(test)]
mod tests;
