//! Resolves conditions and repeats, which refer to names that steps bind.

use super::plan::{RepeatRule, StepCondition};
use super::step_spec::RepeatSpec;

const MAX_REPEATS: u32 = 10_000;

/// Returns the position of `name` in `taken`, the names that are bound so far.
///
/// # Errors
/// Returns an error with the bound names if no step binds `name`.
pub(super) fn find_name(taken: &[String], name: &str) -> Result<usize, String> {
    let found = taken.iter().position(|taken| taken == name);
    found.ok_or_else(|| match taken {
        [] => format!("`{name}` is bound by no earlier step: write take.{name} there"),
        known => format!(
            "`{name}` is bound by no earlier step: those bind {}",
            known.join(", ")
        ),
    })
}

/// Parses the plan key `if`.
///
/// # Errors
/// Returns an error if no step binds the name in the condition.
pub(super) fn parse_condition(taken: &[String], text: &str) -> Result<StepCondition, String> {
    let compared = |operator: &str, is_negated: bool| {
        let (name, value) = text.split_once(operator)?;
        Some((name.trim(), Some(value.trim().to_owned()), is_negated))
    };
    let (name, value, is_negated) = compared("==", false)
        .or_else(|| compared("!=", true))
        .unwrap_or_else(|| match text.trim().strip_prefix('!') {
            Some(name) => (name.trim(), None, true),
            None => (text.trim(), None, false),
        });
    Ok(StepCondition {
        name: find_name(taken, name)?,
        value,
        is_negated,
    })
}

/// Resolves how often a step or a loop is made. `None`: once.
///
/// # Errors
/// Returns an error if the number is out of range, or no step binds the name.
pub(super) fn resolve_repeat(
    taken: &[String],
    repeat: Option<&RepeatSpec>,
) -> Result<RepeatRule, String> {
    match repeat {
        None => Ok(RepeatRule::Times(1)),
        Some(RepeatSpec::Times(times @ 1..=MAX_REPEATS)) => Ok(RepeatRule::Times(*times)),
        Some(RepeatSpec::Times(times)) => Err(format!("{times} times: use 1 to {MAX_REPEATS}")),
        Some(RepeatSpec::While(text)) => match text.strip_prefix("while ") {
            Some(name) => find_name(taken, name.trim()).map(RepeatRule::While),
            None => Err(format!("`{text}`: write a number, or \"while NAME\"")),
        },
    }
}
