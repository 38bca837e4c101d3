//! The header fields of a journey's steps: the values they contain, and the names under which a saved plan lists secret
//! ones.

use std::collections::{BTreeMap, HashSet};

use plimsoll_model::rows::template::{FieldSource, MetadataField, TemplatePart};
use plimsoll_model::spec::MetadataSpec;
use toml::{Table, Value};

use super::plan::JourneyStep;
use super::step_module;
use super::step_spec::{StepSpec, has_only_template_fields, step_field_name};
use crate::shared::bearer_token::{self, TOKEN_FIELD_NAME};

/// The key of a step that offers subprotocols.
const SUBPROTOCOL_KEY: &str = "subprotocol";

/// Marks the taken values that some step's header field contains.
pub(super) fn mark_header_values(steps: &mut [JourneyStep]) {
    let headers = steps.iter().flat_map(|step| step.call.header_fields().1);
    let fields = headers.flat_map(|field| field.template.parts());
    let in_headers: HashSet<usize> = fields
        .filter_map(TemplatePart::field)
        .filter_map(|field| match field.source {
            FieldSource::Captured(taken) => Some(usize::from(taken.index)),
            _ => None,
        })
        .collect();
    for take in steps.iter_mut().flat_map(|step| &mut step.takes) {
        take.is_in_header = in_headers.contains(&take.name);
    }
}

/// The constant header fields, and those with templates.
type JourneyFields = (Vec<(String, String)>, Vec<MetadataField>);

/// Returns the section's header fields once, and each step's own fields under names with the step's number. `shared`:
/// the names of the section's fields.
pub(super) fn collect_fields(
    shared: &[String],
    typed: &[StepSpec],
    steps: &[JourneyStep],
) -> JourneyFields {
    let mut constant: BTreeMap<(usize, String), Vec<String>> = BTreeMap::new();
    let mut varying = Vec::new();
    let mut varying_names = HashSet::new();
    for (number, (typed, step)) in (1..).zip(typed.iter().zip(steps)) {
        let own = typed
            .call
            .get(step.module.fields_key)
            .and_then(|value| value.as_table());
        let is_own = |name: &str| {
            own.is_some_and(|own| own.keys().any(|key| key.eq_ignore_ascii_case(name)))
        };
        let is_typed = |name: &str| {
            let mut names = shared.iter();
            is_own(name) || names.any(|key| key.eq_ignore_ascii_case(name))
        };
        let shown = |name: &str| {
            if is_own(name) {
                (number, step_field_name(number, name))
            } else {
                (0, name.to_owned())
            }
        };
        let mut of_step: BTreeMap<(usize, String), Vec<String>> = BTreeMap::new();
        let (same, varied) = step.call.header_fields();
        for (name, value) in same.iter().filter(|(name, _)| is_typed(name)) {
            of_step.entry(shown(name)).or_default().push(value.clone());
        }
        for (_, token) in step.call.setting_secrets() {
            let name = step_field_name(number, TOKEN_FIELD_NAME);
            constant.insert((number, name), vec![token]);
        }
        // The section's fields have the same values in all steps that do not replace them, so the first step's are
        // enough.
        for (name, values) in of_step {
            constant.entry(name).or_insert(values);
        }
        let mut of_step = Vec::new();
        for field in varied
            .iter()
            .filter(|field| is_typed(&field.name) && !has_only_template_fields(&field.typed))
        {
            let mut field = field.clone();
            (_, field.name) = shown(&field.name);
            of_step.push(field);
        }
        let known: HashSet<String> = of_step.iter().map(|field| field.name.clone()).collect();
        of_step.retain(|field| !varying_names.contains(&field.name));
        varying.extend(of_step);
        varying_names.extend(known);
    }
    let constant = constant.into_iter().flat_map(|((_, name), values)| {
        let named = move |value| (name.clone(), value);
        values.into_iter().map(named).collect::<Vec<_>>()
    });
    (constant.collect(), varying)
}

/// Applies `change` to the header fields or metadata of each step, and to a token among its subprotocols. `change` gets
/// their names with the step's number, from 1, since steps may have different values for the same name.
pub(crate) fn change_fields(steps: &mut [StepSpec], change: &dyn Fn(&str, &mut MetadataSpec)) {
    for (number, step) in (1..).zip(steps) {
        if let Some(offered) = step.call.get_mut(SUBPROTOCOL_KEY) {
            change_step_token(number, offered, change);
        }
        let keys = step_module::registered_modules()
            .iter()
            .map(|module| module.fields_key);
        let mut tables: Vec<&mut Table> = Vec::new();
        for (key, value) in step.call.iter_mut() {
            if keys.clone().any(|known| known == key)
                && let Value::Table(table) = value
            {
                tables.push(table);
            }
        }
        for (name, typed) in tables.into_iter().flat_map(|table| table.iter_mut()) {
            let Ok(mut value) = typed.clone().try_into::<MetadataSpec>() else {
                continue;
            };
            if matches!(&value, MetadataSpec::Text(text) if has_only_template_fields(text)) {
                continue;
            }
            change(&step_field_name(number, name), &mut value);
            if let Ok(changed) = Value::try_from(&value) {
                *typed = changed;
            }
        }
    }
}

/// Applies `change` to the token among the subprotocols that step `number` offers.
fn change_step_token(number: usize, offered: &mut Value, change: &dyn Fn(&str, &mut MetadataSpec)) {
    let Ok(mut names) = offered.clone().try_into::<MetadataSpec>() else {
        return;
    };
    let typed = names.clone();
    let change_literal = |name: &str, value: &mut MetadataSpec| {
        if !matches!(value, MetadataSpec::Text(text) if has_only_template_fields(text)) {
            change(&step_field_name(number, name), value);
        }
    };
    bearer_token::change_token(Some(&mut names), &change_literal);
    if names != typed
        && let Ok(changed) = Value::try_from(&names)
    {
        *offered = changed;
    }
}
