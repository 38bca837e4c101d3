//! The keys that a step's table may have.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use plimsoll_model::spec::{MetadataSpec, struct_keys};
use toml::Table;

use super::step_module::{self, StepModule, StepSection};
use super::step_spec::{LoopTable, StepControlSpec, TakeTable};

/// The key of a section's array of steps.
pub(super) const STEPS_KEY: &str = "steps";

/// Returns the keys that the table at `path` within a step of the section `S` may have. `None`: any key.
pub(crate) fn keys_within<S: StepSection>(path: &str) -> Option<&'static [&'static str]> {
    match path.split_once('.') {
        None => Some(step_keys::<S>()),
        Some((_, "take")) => None,
        Some((_, "loop")) => Some(struct_keys::<LoopTable>()),
        Some((_, within)) if within.matches('.').count() == 1 && within.starts_with("take.") => {
            Some(struct_keys::<TakeTable>())
        }
        Some((_, within)) => {
            let field = within.strip_prefix(S::FIELDS_KEY)?;
            field.starts_with('.').then(MetadataSpec::keys)
        }
    }
}

/// Returns the keys of a step: those of [`StepControlSpec`], then those of the section, and those of other protocols, since
/// a step may have a target of another kind.
fn step_keys<S: StepSection>() -> &'static [&'static str] {
    static KEYS_BY_SECTION: Mutex<BTreeMap<&'static str, &'static [&'static str]>> =
        Mutex::new(BTreeMap::new());
    let mut known = KEYS_BY_SECTION
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    known.entry(S::SCHEMES.section).or_insert_with(|| {
        let call = struct_keys::<S>().iter();
        let flow = struct_keys::<StepControlSpec>().iter();
        let others = step_module::registered_modules()
            .iter()
            .flat_map(|module| (module.keys)());
        let mut keys: Vec<&'static str> = Vec::new();
        for key in flow.chain(call).chain(others) {
            if *key != STEPS_KEY && !keys.contains(key) {
                keys.push(key);
            }
        }
        keys.leak()
    })
}

/// Returns the keys of a step's call: the step's own keys, and the section's values for all other keys. Header fields
/// of both are combined. If the step has any content key, none of the section's content keys are used.
pub(super) fn merge_call_keys(module: &StepModule, section: Table, own: &Table) -> Table {
    let mut table = section;
    if module.content_keys.iter().any(|key| own.contains_key(*key)) {
        for key in module.content_keys {
            table.remove(*key);
        }
    }
    for (key, value) in own {
        match (
            table.get_mut(key).and_then(|before| before.as_table_mut()),
            value,
        ) {
            (Some(before), toml::Value::Table(more)) => before.extend(more.clone()),
            _ => {
                table.insert(key.clone(), value.clone());
            }
        }
    }
    table
}
