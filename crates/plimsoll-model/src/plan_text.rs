//! Compares two plans key by key, so that reports can state how compared runs differ.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fmt;

use toml::{Table, Value};

use crate::spec::{self, CallProtocol};

/// A key whose value differs between two plans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanDifference {
    /// The dotted key: `load.rate`.
    pub key: String,
    /// The value in the first plan; `None`: the key is absent.
    pub a: Option<String>,
    /// The value in the second plan; `None`: the key is absent.
    pub b: Option<String>,
}

/// Keys that name, label, watch or seed a run, or set its target. Compared runs differ in these on purpose, so they are
/// not reported.
const IGNORED_KEYS: &[&str] = &[
    "name",
    "labels",
    "target",
    "seed",
    "objective",
    "watch",
    "requests",
];

impl PlanDifference {
    /// Returns whether the difference affects the measurement.
    pub fn affects_measurement(&self) -> bool {
        !IGNORED_KEYS.iter().any(|k| {
            self.key
                .strip_prefix(k)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    }
}

impl fmt::Display for PlanDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = |v: &Option<String>| v.clone().unwrap_or_else(|| "(not set)".to_owned());
        write!(f, "{}: {} → {}", self.key, value(&self.a), value(&self.b))
    }
}

/// Returns, in order, the keys whose values have a different meaning in the plans `a` and `b` (resolved, TOML). A time,
/// rate or size that an older build wrote in another notation is not a difference. If one of the plans can't be parsed,
/// because another build wrote it, the texts are compared. Text that is not TOML counts as a plan without keys.
pub fn plan_differences(a: &str, b: &str) -> Vec<PlanDifference> {
    let (a, b) = match (normalise(a), normalise(b)) {
        (Some(a), Some(b)) => (dotted_keys(&a), dotted_keys(&b)),
        _ => (dotted_keys(a), dotted_keys(b)),
    };
    let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    keys.into_iter()
        .map(|key| PlanDifference {
            key: key.clone(),
            a: a.get(key).cloned(),
            b: b.get(key).cloned(),
        })
        .filter(|d| d.a != d.b)
        .collect()
}

/// Rewrites the plan in the way in which this build writes plans; `None`: it can't be parsed.
fn normalise(plan: &str) -> Option<String> {
    // This also rewrites the call's section.
    let mut spec = spec::read(plan).ok()?.without_secrets();
    let canonical = |protocol: &CallProtocol, section: &Table| -> Result<_, Infallible> {
        Ok((protocol.canonical)(section))
    };
    let Ok(()) = spec.call.try_change_sections(canonical);
    spec.to_toml().ok()
}

fn dotted_keys(plan: &str) -> BTreeMap<String, String> {
    let mut keys = BTreeMap::new();
    flatten("", &plan.parse::<Table>().unwrap_or_default(), &mut keys);
    keys
}

fn flatten(prefix: &str, table: &Table, keys: &mut BTreeMap<String, String>) {
    for (key, value) in table {
        let key = if prefix.is_empty() {
            key.clone()
        } else {
            format!("{prefix}.{key}")
        };
        match value {
            Value::Table(inner) => flatten(&key, inner, keys),
            other => {
                keys.insert(key, other.to_string());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_diff_names_keys_and_relevance() {
        let a = "name = 'a'\ntarget = 'grpc://x:1'\n[load]\nrate = '100/s'\nconnections = 1\n";
        let b = "name = 'b'\ntarget = 'grpc://x:1'\n[load]\nrate = '200/s'\n";
        let found = plan_differences(a, b);
        let keys: Vec<_> = found
            .iter()
            .map(|d| (d.key.as_str(), d.affects_measurement()))
            .collect();
        assert_eq!(
            keys,
            [
                ("load.connections", true),
                ("load.rate", true),
                ("name", false)
            ]
        );
        assert_eq!(found[0].b, None);
        assert_eq!(found[1].a.as_deref(), Some("\"100/s\""));
        assert_eq!(plan_differences(a, a), []);
    }

    #[test]
    fn plan_diff_compares_values_by_meaning() {
        let before = "load = { duration = '12.5s', rate = '60/m', read_buffer = '1024B' }";
        let now = "load = { duration = '12500ms', rate = '1/s', read_buffer = '1KiB' }";
        assert_eq!(plan_differences(before, now), []);
        // A name is text, even if it looks like a number.
        let keys = |a, b| -> Vec<String> {
            let found = plan_differences(a, b);
            found.into_iter().map(|d| d.key).collect()
        };
        assert_eq!(keys("name = '1s'", "name = '1000ms'"), ["name"]);
        let later = "later = 1\nload = { duration = '1s' }";
        let found = keys(later, "load = { duration = '1000ms' }");
        assert_eq!(found, ["later", "load.duration"]);
    }
}
