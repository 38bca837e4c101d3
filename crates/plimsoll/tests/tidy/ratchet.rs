//! Limits in `ratchet.toml` that may only fall, for violations that are not fixed yet.
//!
//! With more violations than the limit the test fails and lists the places. With fewer it fails as
//! well and gives the new number, so that the limit cannot be used up again.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::read;

const FILE: &str = "crates/plimsoll/tests/tidy/ratchet.toml";

/// A table of `ratchet.toml` with the number of violations allowed for each name.
pub(crate) struct Ratchet {
    table: &'static str,
    bounds: BTreeMap<String, usize>,
}

impl Ratchet {
    pub(crate) fn read(table: &'static str) -> Ratchet {
        Ratchet {
            table,
            bounds: bounds(&read(FILE), table),
        }
    }

    /// Compares the violations found, by name, with the limits; without a limit none is allowed.
    pub(crate) fn hold(&self, found: &BTreeMap<String, Vec<String>>) {
        let complaints: Vec<String> = found
            .iter()
            .filter_map(|(name, found)| self.complaint(name, found))
            .collect();
        assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
    }

    fn complaint(&self, name: &str, found: &[String]) -> Option<String> {
        let bound = self.bounds.get(name).copied().unwrap_or(0);
        let (there, table) = (found.len(), self.table);
        match there.cmp(&bound) {
            Ordering::Equal => None,
            Ordering::Greater => Some(format!(
                "{name}: {there} {table}, {bound} allowed:\n{}",
                found.join("\n")
            )),
            Ordering::Less => Some(format!(
                "{name}: {there} {table}, fewer than before: write {there} in place of {bound} in {FILE}"
            )),
        }
    }
}

/// A table of `ratchet.toml` with the size allowed for each item that exceeds the usual limit.
pub(crate) struct Bounds {
    table: &'static str,
    bounds: BTreeMap<String, usize>,
}

impl Bounds {
    pub(crate) fn read(table: &'static str) -> Bounds {
        Bounds {
            table,
            bounds: bounds(&read(FILE), table),
        }
    }

    /// Compares sizes, by name, with the limits; `usual` applies to all others. An entry that is
    /// not needed any more must be removed.
    pub(crate) fn hold(&self, sizes: &BTreeMap<String, usize>, usual: usize) {
        let mut complaints = Vec::new();
        for (name, size) in sizes {
            let bound = self.bounds.get(name).copied().unwrap_or(usual);
            if *size > bound {
                complaints.push(format!("{name}: {size} {}, {bound} allowed", self.table));
            }
        }
        let is_met = |name: &&String| sizes.get(*name).is_some_and(|size| *size > usual);
        for name in self.bounds.keys().filter(|name| !is_met(name)) {
            complaints.push(format!(
                "{name}: take it out of [\"{}\"] in {FILE}",
                self.table
            ));
        }
        assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
    }
}

/// Parses the `"NAME" = NUMBER` lines below `[table]`.
fn bounds(text: &str, table: &str) -> BTreeMap<String, usize> {
    let heading = format!("[\"{table}\"]");
    let lines = text.lines().skip_while(|line| *line != heading).skip(1);
    let lines = lines.take_while(|line| !line.starts_with('['));
    lines
        .filter_map(|line| line.split_once('='))
        .map(|(name, number)| {
            let number = number.split('#').next().unwrap_or_default().trim();
            let number = number
                .parse()
                .unwrap_or_else(|_| panic!("{FILE}: `{number}` is not a number"));
            (name.trim().trim_matches('"').to_owned(), number)
        })
        .collect()
}

#[test]
fn ratchet_fails_above_and_below_bound() {
    let ratchet = Ratchet {
        table: "warts",
        bounds: bounds(
            "[\"others\"]\n\"a\" = 9\n[\"warts\"]\n\"a\" = 1\n\n[\"more\"]\n\"a\" = 5\n",
            "warts",
        ),
    };
    let found = |name: &str, n: usize| ratchet.complaint(name, &vec!["x.rs:3".to_owned(); n]);
    assert_eq!(found("a", 1), None);
    assert_eq!(found("b", 0), None);
    assert_eq!(
        found("b", 1),
        Some("b: 1 warts, 0 allowed:\nx.rs:3".to_owned())
    );
    assert_eq!(
        found("a", 2),
        Some("a: 2 warts, 1 allowed:\nx.rs:3\nx.rs:3".to_owned())
    );
    let fewer = found("a", 0).expect("a complaint");
    assert!(fewer.contains("write 0 in place of 1"), "{fewer}");
}

#[test]
#[should_panic(expected = "a: 502 lines, 501 allowed\nc: take it out")]
fn bounds_reject_growth_and_stale_entries() {
    let bounds = Bounds {
        table: "lines",
        bounds: BTreeMap::from([("a".to_owned(), 501), ("c".to_owned(), 600)]),
    };
    let sizes = [("a", 502), ("b", 500), ("c", 499)];
    bounds.hold(
        &sizes.map(|(name, size)| (name.to_owned(), size)).into(),
        500,
    );
}
