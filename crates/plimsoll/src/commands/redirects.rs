//! Follows redirects before a load, for the commands that have `--redirects`.

use plimsoll_model::Plan;
use plimsoll_model::formats::redaction::mask_urls;
use plimsoll_model::spec::Spec;
use plimsoll_protocols::registry::CommandEntry;
use plimsoll_report::quantity::plural;

use crate::failure::Failure;
use crate::load::planning;
use crate::load::protocols::query_failure;
use crate::screen::console;
use crate::settings::environment::Environment;
use crate::settings::problems::PlanSource;

/// Follows at most `limit` redirects from the target of `plan`, which was resolved from `spec`. Returns the plan for
/// the final target, and changes `spec` accordingly.
///
/// # Errors
/// When a server can't be reached, or a redirect can't be followed.
pub(super) fn follow_redirects(
    entry: &CommandEntry,
    limit: u32,
    (spec, mut plan): (&mut Spec, Plan),
    environment: &Environment,
) -> Result<Plan, Failure> {
    let mut dropped = Vec::new();
    for followed in 0..=limit {
        let hop = entry.follow_redirect(&plan, spec);
        let Some(hop) = hop.map_err(query_failure)? else {
            announce_redirects(followed, &plan, &dropped);
            return Ok(plan);
        };
        if followed == limit {
            return Err(Failure::error_with_help(
                format_args!(
                    "--redirects: more than {limit} redirects; the last one leads to {}",
                    mask_urls(&hop.url)
                ),
                "raise the limit with --redirects=N, or write the URL that is to be measured",
            ));
        }
        dropped.extend(hop.dropped);
        plan = planning::resolve_plan(spec, environment, &PlanSource::Flags)?;
    }
    Ok(plan)
}

/// Says where the load goes, and that requests were made before it: one for each redirect, and one that was answered
/// with none.
fn announce_redirects(followed: u32, plan: &Plan, dropped: &[String]) {
    let without = if dropped.is_empty() {
        String::new()
    } else {
        format!(
            ", without {}, which another origin is not given",
            dropped.join(", ")
        )
    };
    let destination = if followed == 0 {
        String::new()
    } else {
        let url = mask_urls(&plan.target.url);
        format!("; the load goes to {url}{without}")
    };
    let requests = plural(u64::from(followed) + 1, "request");
    let are = if followed == 0 { "is" } else { "are" };
    console::print_confirmation(format_args!(
        "redirects followed: {followed}{destination}; {requests} before the load {are} in no figure"
    ));
}
