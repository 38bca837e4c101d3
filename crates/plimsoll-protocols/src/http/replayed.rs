//! Resolves the paths of HTTP calls that replay the arrivals of a log.

use plimsoll_model::spec::{Problems, Spec};
use plimsoll_model::template::Rows;

use super::section::HttpSpec;

/// The column with the path of a request.
const PATH_COLUMN: &str = "path";
const METHOD_COLUMN: &str = "method";

/// The template for the path of each line.
const LINE_PATH: &str = "{{row.path}}";

/// Returns the path of the calls: that of each log line, if neither the plan nor the target has one. All calls of a
/// plan use one method, so lines with another method are reported.
pub(super) fn path(
    problems: &mut Problems,
    spec: &Spec,
    (call, method): (&HttpSpec, &str),
    rows: Option<&Rows>,
    path: Option<String>,
) -> Option<String> {
    let own = rows.filter(|rows| rows.column(PATH_COLUMN).is_some());
    let has_own = call.path.is_some() || call.websocket.is_some() || spec.rows.is_some();
    let Some(rows) = own.filter(|_| !has_own && path.as_deref() == Some("/")) else {
        return path;
    };
    let methods = rows.column(METHOD_COLUMN);
    let other = methods.and_then(|methods| methods.values().find(|value| value != method));
    if let Some(other) = other {
        problems.add(
            "load.replay",
            format!(
                "the file has requests of {other}, and this call's method is {method}: replay those of one method with the filter \"method={method}\" (load.filter)"
            ),
        );
    }
    Some(LINE_PATH.to_owned())
}
