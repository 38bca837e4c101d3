//! Where two plans differ, key by key: runs of different plans are compared knowingly.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use toml::{Table, Value};

/// A key that two plans do not agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanDifference {
    /// With dots: `load.rate`.
    pub key: String,
    /// As in the plan; `None`: not there.
    pub a: Option<String>,
    /// The same of the other plan.
    pub b: Option<String>,
}

/// Keys that say how a run is called, watched or seeded, and which target it goes to: to
/// differ in these is what comparisons are for.
const HARMLESS: &[&str] = &["name", "target", "seed", "objective", "watch", "requests"];

impl PlanDifference {
    /// The difference changes what was measured.
    pub fn matters(&self) -> bool {
        !HARMLESS.iter().any(|k| {
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

/// The keys on which the plans `a` and `b` (resolved, TOML) differ, in order. Text that
/// is not TOML counts as a plan without keys.
pub fn differences(a: &str, b: &str) -> Vec<PlanDifference> {
    let (a, b) = (flat(a), flat(b));
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

fn flat(plan: &str) -> BTreeMap<String, String> {
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
    fn what_differs_is_named_and_what_matters_is_distinguished() {
        let a = "name = 'a'\ntarget = 'grpc://x:1'\n[load]\nrate = '100/s'\nconnections = 1\n";
        let b = "name = 'b'\ntarget = 'grpc://x:1'\n[load]\nrate = '200/s'\n";
        let found = differences(a, b);
        let keys: Vec<_> = found
            .iter()
            .map(|d| (d.key.as_str(), d.matters()))
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
        assert_eq!(differences(a, a), []);
    }
}
