//! Replaces the secrets in `[lanes.NAME]` by environment variables. The tables of a lane are merged with the plan's before
//! they are read, so they are searched as they are written.

use std::mem;

use toml::{Table, Value};

use crate::formats::redaction::{BodySecrets, QuerySecrets};
use crate::rows::template::has_fields;
use crate::spec::call::replace_body_secrets;
use crate::spec::{LaneTable, MetadataSpec, steps};

/// Keys of the tables with header fields or metadata.
const FIELD_KEYS: [&str; 3] = ["header", "headers", "metadata"];

/// A function that replaces the value of a header field, given the field's name and the name that its variable is made
/// of, if the value is a secret.
pub(in crate::spec) type HideField = fn(&str, &str, &mut MetadataSpec);

/// The secrets of a plan and its lanes, whose variables must differ where the values do.
pub(in crate::spec) struct SharedSecrets {
    pub(in crate::spec) queries: QuerySecrets,
    pub(in crate::spec) bodies: BodySecrets,
}

/// Replaces the secrets in the target, the call and the steps of the lane `name`.
pub(in crate::spec) fn replace_lane_secrets(
    name: &str,
    lane: &mut LaneTable,
    secrets: &mut SharedSecrets,
    hide_field: HideField,
) {
    if let Some(Value::String(target)) = &mut lane.target {
        *target = secrets.queries.replace_secrets(target);
    }
    let sections = lane.call.as_mut().and_then(Value::as_table_mut);
    for section in sections.into_iter().flat_map(Table::iter_mut) {
        if let Value::Table(section) = section.1 {
            replace_section_secrets(name, section, secrets, hide_field);
        }
    }
    if let Some(steps) = &mut lane.steps {
        let mut section = Table::new();
        section.insert(
            steps::STEPS_KEY.to_owned(),
            mem::replace(steps, false.into()),
        );
        replace_section_secrets(name, &mut section, secrets, hide_field);
        *steps = section
            .remove(steps::STEPS_KEY)
            .unwrap_or_else(|| false.into());
    }
}

fn replace_section_secrets(
    lane: &str,
    section: &mut Table,
    secrets: &mut SharedSecrets,
    hide_field: HideField,
) {
    hide_fields(lane, section, hide_field);
    if let Some(Value::String(path)) = section.get_mut("path") {
        *path = secrets.queries.replace_secrets(path);
    }
    let steps = section.get_mut(steps::STEPS_KEY);
    let steps = steps.and_then(Value::as_array_mut).into_iter().flatten();
    for (number, step) in (1..).zip(steps) {
        if let Value::Table(step) = step {
            hide_fields(&format!("{lane}-step{number}"), step, hide_field);
        }
    }
    steps::replace_query_secrets(section, &mut secrets.queries);
    replace_body_secrets(section, &mut secrets.bodies);
}

/// Replaces the secrets in the header fields of a section or step.
fn hide_fields(place: &str, table: &mut Table, hide_field: HideField) {
    for key in FIELD_KEYS {
        let fields = table.get_mut(key).and_then(Value::as_table_mut);
        for (name, value) in fields.into_iter().flat_map(Table::iter_mut) {
            let Ok(mut typed) = value.clone().try_into::<MetadataSpec>() else {
                continue;
            };
            // A value with fields is no literal secret: an earlier step may bind its name.
            if matches!(&typed, MetadataSpec::Text(text) if has_fields(text)) {
                continue;
            }
            hide_field(name, &format!("{place}-{name}"), &mut typed);
            if let Ok(changed) = Value::try_from(&typed) {
                *value = changed;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::spec::Spec;

    #[test]
    fn secrets_of_lanes_become_variables() {
        let text = "target = \"grpc://a:1\"\n[call.grpc]\nmethod = \"a.B/C\"\n\
                    message = { password = \"hush-0\" }\n[load]\nrate = \"1/s\"\ncalls = 2\n\
                    [lanes.a]\ncall.grpc.metadata.authorization = \"Bearer hush-1\"\n\
                    call.grpc.message.password = \"hush-2\"\n\
                    [lanes.b]\ntarget = \"http://a:1/?api_key=hush-3\"\n\
                    [[lanes.b.steps]]\npath = \"/a?token=hush-4\"\nbody = 'client_secret=hush-5'\n\
                    headers = { x-key = \"hush-6\", authorization = \"Bearer {{token}}\" }\n";
        // The keys of steps are those of a protocol, so only the plan as a whole is read here.
        let spec: Spec = toml::from_str(text).expect("readable");
        let saved = spec.without_secrets();
        let saved = saved.to_toml().expect("writable");
        assert!(!saved.contains("hush"), "{saved}");
        for kept in [
            "$PLIMSOLL_BODY_PASSWORD\"",
            "$PLIMSOLL_BODY_PASSWORD_2",
            "PLIMSOLL_METADATA_A_AUTHORIZATION",
            "api_key=$PLIMSOLL_QUERY_API_KEY",
            "token=$PLIMSOLL_QUERY_TOKEN",
            "client_secret=$PLIMSOLL_BODY_CLIENT_SECRET",
            "PLIMSOLL_METADATA_B_STEP1_X_KEY",
            "Bearer {{token}}",
        ] {
            assert!(saved.contains(kept), "{kept}: {saved}");
        }
    }
}
