//! The second target of a journey, and the files that its calls read.

use std::path::PathBuf;

use plimsoll_model::formats::redaction;
use plimsoll_model::spec::{Problems, Spec, resolve_target_url, scheme_alias};

use super::keys::STEPS_KEY;
use super::plan::SecondTarget;
use super::step_module;
use super::step_spec::StepSpec;

/// Returns the files that the calls of the steps read, with the plan keys that name them. `section`: the section of the
/// plan's own target.
pub(crate) fn step_files(section: &str, steps: &[StepSpec]) -> Vec<(&'static str, PathBuf)> {
    let of_step = |step: &StepSpec| {
        let module = match step.flow.target.as_deref() {
            Some(url) => step_module::find_module_for_url(url)?,
            None => step_module::find_module(section)?,
        };
        Some((module.files)(&step.call))
    };
    steps.iter().filter_map(of_step).flatten().collect()
}

/// Returns whether the target of some step is reached over TLS.
pub(crate) fn has_secured_target(steps: &[StepSpec], spec: &Spec) -> bool {
    let mut urls = steps.iter().filter_map(|step| step.flow.target.as_deref());
    urls.any(|url| resolve_target_url(url, spec).is_ok_and(|(_, is_secured)| is_secured))
}

/// Returns the target that steps have besides the plan's own. All steps with a `target` must have the same one.
pub(super) fn second_target(
    problems: &mut Problems,
    spec: &Spec,
    steps: &[StepSpec],
) -> Option<SecondTarget> {
    let typed = (0..).zip(steps);
    let mut typed = typed.filter_map(|(index, step)| Some((index, step.flow.target.as_deref()?)));
    let (index, url) = typed.next()?;
    let origin = |url: &str| {
        resolve_target_url(url, spec).map(|(target, secured)| (target.authority(), secured))
    };
    for (other, another) in typed {
        let is_of_same_kind =
            step_module::find_module_for_url(another) == step_module::find_module_for_url(url);
        if !is_of_same_kind || origin(another).ok() != origin(url).ok() {
            let key = format!("{STEPS_KEY}.{other}.target");
            let url = redaction::replace_secrets_with_variables(url);
            let problem =
                format!("a second one besides {url}: steps can have one other than the plan's");
            problems.add(key, problem);
        }
    }
    let key = format!("{STEPS_KEY}.{index}.target");
    let (target, is_secured) = problems.ok_or_report(&key, resolve_target_url(url, spec))?;
    Some(SecondTarget { target, is_secured })
}

/// Returns whether both targets have the same cookies. This is the case if one of them is a WebSocket and both are on
/// the same host, since cookies do not depend on ports (RFC 6265, 8.5).
pub(super) fn shares_cookies(
    spec: &Spec,
    second: Option<&SecondTarget>,
    steps: &[StepSpec],
) -> bool {
    let own = spec.target.as_deref();
    let mut urls = steps.iter().filter_map(|step| step.flow.target.as_deref());
    let (Some(own), Some(url), Some(second)) = (own, urls.next(), second) else {
        return false;
    };
    let is_socket = |url: &str| scheme_alias(url).is_some();
    let host =
        resolve_target_url(own, spec).map(|(target, _)| target.host_without_zone().to_owned());
    is_socket(own) != is_socket(url)
        && host.is_ok_and(|host| host == second.target.host_without_zone())
}
