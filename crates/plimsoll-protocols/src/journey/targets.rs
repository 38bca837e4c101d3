//! The second target of a journey, and the files that its calls read.

use std::path::PathBuf;

use plimsoll_model::redaction;
use plimsoll_model::spec::{Problems, Spec, section_for_url, resolve_target_url};

use super::keys::STEPS_KEY;
use super::module;
use super::plan::SecondTarget;
use super::step_spec::StepSpec;

/// Returns the files that the calls of the steps read, with their keys. `section`: the section of the plan's own
/// target.
pub(crate) fn step_files(section: &str, steps: &[StepSpec]) -> Vec<(&'static str, PathBuf)> {
    let of_step = |step: &StepSpec| {
        let own = step.flow.target.as_deref().and_then(section_for_url);
        let module = module::find_module(own.unwrap_or(section))?;
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
    let origin =
        |url: &str| resolve_target_url(url, spec).map(|(target, secured)| (target.authority(), secured));
    for (other, another) in typed {
        if section_for_url(another) != section_for_url(url) || origin(another).ok() != origin(url).ok() {
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
