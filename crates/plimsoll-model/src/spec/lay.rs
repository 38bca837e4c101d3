//! What was typed, over what a plan's file says.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::Problem;

/// Lays what was typed over the keys of the same names in a section of a plan. What was not typed is absent, or `false`.
///
/// # Errors
/// Where a plan can't hold what was typed, as a path that is not UTF-8.
pub fn lay<T: Serialize + DeserializeOwned>(
    typed: &impl Serialize,
    over: &mut T,
) -> Result<(), Problem> {
    let is_typed =
        |(_, value): &(String, Value)| !matches!(value, Value::Null | Value::Bool(false));
    let mut section = keys(over)?;
    section.extend(keys(typed)?.into_iter().filter(is_typed));
    let laid = serde_path_to_error::deserialize(Value::Object(section));
    *over = laid.map_err(|e| Problem::new(e.path().to_string(), e.inner().to_string()))?;
    Ok(())
}

/// As [`lay`], over a section that a plan may leave out.
///
/// # Errors
/// As [`lay`].
pub fn lay_over_section<T>(typed: &impl Serialize, over: &mut Option<T>) -> Result<(), Problem>
where
    T: Serialize + DeserializeOwned + Default + PartialEq,
{
    let mut section = over.take().unwrap_or_default();
    lay(typed, &mut section)?;
    *over = Some(section).filter(|section| *section != T::default());
    Ok(())
}

fn keys(section: &impl Serialize) -> Result<Map<String, Value>, Problem> {
    match serde_path_to_error::serialize(section, serde_json::value::Serializer) {
        Ok(Value::Object(keys)) => Ok(keys),
        Ok(_) => Ok(Map::new()),
        Err(e) => Err(Problem::new(e.path().to_string(), e.inner().to_string())
            .help("a plan is text: give a name that is UTF-8")),
    }
}
