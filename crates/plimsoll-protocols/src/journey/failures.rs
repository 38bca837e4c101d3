//! Resolves the effect of a failed step, and the maximum number of calls of a user.

use std::time::Duration;

use super::loops::loop_repeats;
use super::plan::{MAX_WHILE_REPEATS, OnFailure};
use super::step_spec::{RepeatSpec, StepControlSpec, StepSpec};

const DEFAULT_ATTEMPTS: u32 = 3;
const MAX_ATTEMPTS: u32 = 100;
const DEFAULT_BACKOFF: Duration = Duration::from_millis(100);

/// Returns the maximum number of calls that a user can make with these steps of a spec.
pub(super) fn max_calls(steps: &[StepSpec]) -> u32 {
    let calls = steps
        .iter()
        .zip(loop_repeats(steps))
        .map(|(step, of_loop)| {
            let flow = &step.flow;
            let passes = max_passes(flow.repeat.as_ref()).saturating_mul(max_passes(of_loop));
            passes.saturating_mul(max_attempts(flow))
        });
    calls.fold(0, u32::saturating_add).max(1)
}

fn max_passes(repeat: Option<&RepeatSpec>) -> u32 {
    match repeat {
        None => 1,
        Some(RepeatSpec::Times(times)) => *times,
        Some(RepeatSpec::While(_)) => MAX_WHILE_REPEATS,
    }
}

fn max_attempts(flow: &StepControlSpec) -> u32 {
    match flow.on_failure.as_deref() {
        Some("retry") => flow.attempts.unwrap_or(DEFAULT_ATTEMPTS),
        _ => 1,
    }
}

/// Resolves the effect of a failure of the step.
///
/// # Errors
/// Returns a message with the valid values if the keys are invalid.
pub(super) fn resolve_on_failure(flow: &StepControlSpec) -> Result<OnFailure, String> {
    let is_for_retries = flow.attempts.is_some() || flow.backoff.is_some();
    match flow.on_failure.as_deref() {
        None | Some("end" | "continue") if is_for_retries => {
            Err("attempts and backoff belong to on_failure = \"retry\"".to_owned())
        }
        None | Some("end") => Ok(OnFailure::End),
        Some("continue") => Ok(OnFailure::Continue),
        Some("retry") => match flow.attempts.unwrap_or(DEFAULT_ATTEMPTS) {
            attempts @ 2..=MAX_ATTEMPTS => Ok(OnFailure::Retry {
                attempts,
                backoff: flow.backoff.map_or(DEFAULT_BACKOFF, |period| period.0),
            }),
            attempts => Err(format!("{attempts} attempts: use 2 to {MAX_ATTEMPTS}")),
        },
        Some(other) => Err(format!(
            "`{other}` is unknown: use \"end\", \"continue\" or \"retry\""
        )),
    }
}
