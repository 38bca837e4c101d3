//! Applies command-line flags to the plan of a file.

use std::fmt::Display;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use toml::Table;

use super::Problem;

/// Advice for a path that a plan can't contain.
pub(super) const NON_UTF8_HELP: &str = "not valid UTF-8, which a plan needs: use another name";

/// Applies flags to the section `name` of a plan; each flag sets the key of the same name. Flags that the user did not
/// give are absent or `false`.
///
/// # Errors
/// When a plan can't contain the value, such as a path that is not UTF-8.
pub fn apply_flags<T: Serialize + DeserializeOwned>(
    name: &str,
    typed: &impl Serialize,
    over: &mut T,
) -> Result<(), Problem> {
    let whole = |e: &dyn Display| Problem::new(name, e.to_string());
    // Check the present values first, since an earlier flag may have set a value that a plan can't contain.
    to_json_entries(name, over)?;
    let mut section = Table::try_from(&*over).map_err(|e| whole(&e))?;
    for (key, value) in to_json_entries(name, typed)? {
        if !matches!(value, Value::Null | Value::Bool(false)) {
            // Of the remaining JSON values, only integers above `i64::MAX` can't be represented in TOML.
            let too_large = || format!("{value} is too large: at most {}", i64::MAX);
            let kept = toml::Value::try_from(&value)
                .map_err(|_| Problem::new(format!("{name}.{key}"), too_large()))?;
            section.insert(key, kept);
        }
    }
    *over = section.try_into().map_err(|e| whole(&e))?;
    Ok(())
}

/// Like [`apply_flags`], for a section that a plan may omit.
///
/// # Errors
/// Returns the errors of [`apply_flags`].
pub fn apply_flags_to_optional<T>(
    name: &str,
    typed: &impl Serialize,
    over: &mut Option<T>,
) -> Result<(), Problem>
where
    T: Serialize + DeserializeOwned + Default + PartialEq,
{
    let mut section = over.take().unwrap_or_default();
    apply_flags(name, typed, &mut section)?;
    *over = Some(section).filter(|section| *section != T::default());
    Ok(())
}

/// Serialises the section as JSON rather than TOML, because a serialisation error can then be traced to a key.
fn to_json_entries(name: &str, section: &impl Serialize) -> Result<Map<String, Value>, Problem> {
    match serde_path_to_error::serialize(section, serde_json::value::Serializer) {
        Ok(Value::Object(keys)) => Ok(keys),
        Ok(_) => Ok(Map::new()),
        Err(e) => Err(
            Problem::new(format!("{name}.{}", e.path()), e.inner().to_string()).help(NON_UTF8_HELP),
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::path::PathBuf;

    use super::*;
    use crate::spec::{LadderSpec, LoadSpec, TlsSpec};

    #[test]
    fn typed_values_override_plan_and_keep_rest() {
        let text = "parts = [\"memory\"]\nturn = 9\n[[rungs]]\nname = \"a\"\n[rungs.load]\nrate = \"1/s\"\nconnections = 2\n";
        let mut ladder: LadderSpec = toml::from_str(text).unwrap();
        let typed = LadderSpec {
            batch: Some(5),
            ..LadderSpec::default()
        };
        apply_flags("ladder", &typed, &mut ladder).unwrap();
        let expected: LadderSpec = toml::from_str(&text.replace('9', "5")).unwrap();
        assert_eq!(ladder, expected);
        let written = toml::to_string(&ladder).unwrap();
        assert!(
            written.find("rate =") < written.find("connections ="),
            "{written}"
        );
    }

    #[test]
    fn unrepresentable_value_error_names_key() {
        let tls = TlsSpec {
            ca: Some(PathBuf::from(OsStr::from_bytes(b"\xff"))),
            ..TlsSpec::default()
        };
        let wrong = apply_flags("tls", &tls, &mut TlsSpec::default()).unwrap_err();
        assert_eq!(wrong.key, "tls.ca");
        assert_eq!(wrong.help.as_deref(), Some(NON_UTF8_HELP));
        let wrong = apply_flags("tls", &TlsSpec::default(), &mut tls.clone()).unwrap_err();
        assert_eq!(wrong.key, "tls.ca");
        let load = LoadSpec {
            calls: Some(u64::MAX),
            ..LoadSpec::default()
        };
        let wrong = apply_flags("load", &load, &mut LoadSpec::default()).unwrap_err();
        assert_eq!(
            wrong.to_string(),
            "`load.calls`: 18446744073709551615 is too large: at most 9223372036854775807"
        );
    }
}
