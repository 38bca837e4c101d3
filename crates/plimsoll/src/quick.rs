//! What the quick forms of a plan have in common: one call, with the load that it is put
//! under, typed as flags.

use plimsoll_model::spec::{CallSpec, Section, Spec};

use crate::failure::Failure;
use crate::load_flags::LoadFlags;
use crate::origins::Origins;
use crate::problems::{self, Source};

/// The plan that was typed.
///
/// # Errors
/// Where flags of the load contradict each other.
pub(crate) fn spec(
    target: Option<&str>,
    call: CallSpec,
    load: &LoadFlags,
    origins: &Origins,
) -> Result<Spec, Failure> {
    let mut spec = Spec {
        target: target.map(str::to_owned),
        call,
        ..Spec::default()
    };
    load.apply(&mut spec, origins)?;
    Ok(spec)
}

/// The call that was typed.
///
/// # Errors
/// Where a plan can't hold it, as a path that is not UTF-8.
pub(crate) fn call<S: Section>(section: &S) -> Result<CallSpec, Failure> {
    CallSpec::of(section).map_err(|problem| problems::failure(vec![problem], &Source::Flags))
}
