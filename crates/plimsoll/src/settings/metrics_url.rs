//! The URL from which a plan's load reads the metrics that the server publishes itself (`watch.server_metrics`).

use plimsoll_model::Plan;
use plimsoll_model::plan::MetricsSource;
use reqwest::Url;

use crate::failure::Failure;

/// Returns the URL of the server's metrics; `None` if the plan does not read them.
///
/// # Errors
/// When the plan's text is not a URL of HTTP.
pub(crate) fn metrics_url(plan: &Plan) -> Result<Option<Url>, Failure> {
    let typed = match &plan.server_metrics {
        None => return Ok(None),
        Some(MetricsSource::Url(typed)) => typed.clone(),
        Some(MetricsSource::Target) => {
            let target = &plan.target;
            let scheme = if plan.tls.is_some() { "https" } else { "http" };
            let host = target.host_without_zone();
            let is_bare_v6 = host.contains(':') && !host.starts_with('[');
            if is_bare_v6 {
                format!("{scheme}://[{host}]:{}/metrics", target.port)
            } else {
                format!("{scheme}://{host}:{}/metrics", target.port)
            }
        }
    };
    let refuse = |problem: &str| {
        Failure::usage(
            format_args!("watch.server_metrics (--server-metrics): `{typed}`: {problem}"),
            "write the URL at which the server publishes its metrics for Prometheus, or auto",
        )
    };
    let url = Url::parse(&typed).map_err(|e| refuse(&e.to_string()))?;
    if !["http", "https"].contains(&url.scheme()) {
        return Err(refuse("metrics are read over HTTP"));
    }
    Ok(Some(url))
}
