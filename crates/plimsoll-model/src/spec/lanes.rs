//! `[lanes.NAME]`: several lanes in one run, each with its share of one schedule's arrivals.

mod secrets;

use toml::{Table, Value};

use super::call::CHECKSUMS_KEY;
use super::lane_table::LaneTable;
use super::steps::{STEPS_KEY, all_steps};
use super::target::{has_tls_scheme, split_scheme};
use super::{Problem, Spec, read};

pub(super) use secrets::{SharedSecrets, replace_lane_secrets};

/// One lane, ready to be resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct LaneSpec {
    /// The key of the lane's table.
    pub name: String,
    /// The lane's share of the arrivals, relative to the sum of all weights.
    pub weight: u32,
    /// The plan merged with the lane's own keys.
    pub spec: Spec,
}

/// Maximum sum of weights, which keeps a round of the schedule short.
const MAX_WEIGHT_SUM: u32 = 10_000;

/// Maximum number of lanes, since each lane has its own thread and connections.
const MAX_LANES: usize = 16;

/// Keys that all lanes share, because they share one schedule.
const SHARED_KEYS: [&str; 9] = [
    "rate",
    "steps",
    "arrivals",
    "clients",
    "think",
    "duration",
    "calls",
    "warmup",
    "processes",
];

impl Spec {
    /// Returns the plan's lanes by name; empty where there are none.
    ///
    /// # Errors
    /// When a lane is invalid, or the plan's load does not allow lanes.
    pub fn lane_specs(&self) -> Result<Vec<LaneSpec>, Problem> {
        if self.lanes.is_empty() {
            return Ok(Vec::new());
        }
        if !(2..=MAX_LANES).contains(&self.lanes.len()) {
            return Err(Problem::new(
                "lanes",
                format!("{} lanes: a plan has 2 to {MAX_LANES}", self.lanes.len()),
            ));
        }
        if self.load.rate.is_none() && self.load.steps.is_none() {
            return Err(Problem::new(
                "lanes",
                "lanes share the arrivals of a rate, and a closed loop has none",
            )
            .help("write rate = \"1000/s\" in [load]"));
        }
        let mut plain = self.clone();
        plain.lanes.clear();
        (plain.ladder, plain.find) = (None, None);
        let plan = Table::try_from(&plain).map_err(|e| Problem::new("lanes", e.to_string()))?;
        let lanes = self.lanes.iter();
        let lanes: Vec<LaneSpec> = lanes
            .map(|(name, own)| build_lane(&plan, name, own))
            .collect::<Result<_, _>>()?;
        let all = lanes.iter().map(|lane| u64::from(lane.weight)).sum::<u64>();
        if all > u64::from(MAX_WEIGHT_SUM) {
            return Err(Problem::new(
                "lanes",
                format!("the weights add up to {all}: at most {MAX_WEIGHT_SUM}, such as 9 and 1"),
            ));
        }
        Ok(lanes)
    }
}

/// Returns whether the name is valid for a lane and its run directory.
fn is_valid_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    (1..=64).contains(&name.len()) && name.chars().all(plain)
}

fn build_lane(plan: &Table, name: &str, own: &LaneTable) -> Result<LaneSpec, Problem> {
    let key = format!("lanes.{name}");
    if !is_valid_name(name) {
        return Err(Problem::new(
            "lanes",
            format!(
                "`{name}` is not a valid lane name: use at most 64 letters, digits, `-` and `_`"
            ),
        ));
    }
    let mut own = Table::try_from(own).map_err(|e| Problem::new(key.as_str(), e.to_string()))?;
    let weight = match own.remove("weight") {
        None => 1,
        Some(Value::Integer(weight)) if (1..=i64::from(MAX_WEIGHT_SUM)).contains(&weight) => {
            weight as u32
        }
        Some(other) => {
            return Err(Problem::new(
                format!("{key}.weight"),
                format!(
                    "`{other}` is not a valid weight: use a whole number from 1 to {MAX_WEIGHT_SUM}"
                ),
            ));
        }
    };
    if let Some(shared) = own.get("load").and_then(Value::as_table).and_then(|load| {
        let mut keys = load.keys();
        keys.find(|key| SHARED_KEYS.contains(&key.as_str()))
    }) {
        return Err(Problem::new(
            format!("{key}.load.{shared}"),
            "all lanes share one schedule: write this in [load], and this lane's share of the calls as its `weight`",
        ));
    }
    let mut merged = plan.clone();
    // A lane of another protocol inherits nothing from the plan's call, and a plaintext lane inherits no TLS settings.
    let protocols = |table: &Table| -> Vec<String> {
        let call = table.get("call").and_then(Value::as_table);
        let sections = call.into_iter().flat_map(Table::keys);
        let sections = sections.filter(|key| *key != CHECKSUMS_KEY);
        sections.cloned().collect()
    };
    if !protocols(&own).is_empty() && protocols(&own) != protocols(&merged) {
        merged.remove("call");
    }
    if own.contains_key(STEPS_KEY)
        && let Some(call) = merged.get_mut("call").and_then(Value::as_table_mut)
    {
        let sections = call.iter_mut();
        sections
            .filter_map(|(_, section)| section.as_table_mut())
            .for_each(|section| drop(section.remove(STEPS_KEY)));
    }
    let plaintext = |target: &str| split_scheme(target).is_some() && !has_tls_scheme(target);
    if own
        .get("target")
        .and_then(Value::as_str)
        .is_some_and(plaintext)
        && !own.contains_key("tls")
    {
        merged.remove("tls");
    }
    merge(&mut merged, own);
    merged.insert("name".to_owned(), Value::String(name.to_owned()));
    let mut spec = read(&merged.to_string()).map_err(|problems| {
        let first = problems.into_iter().next();
        let mut problem = first.unwrap_or_else(|| Problem::new("", "this lane can't be read"));
        problem.key = format!("{key}.{}", problem.key);
        problem.span = None;
        problem
    })?;
    // Each arrival of a journey is a user, so journeys can share arrivals.
    let is_journey = all_steps(&spec).next().is_some();
    if spec.call.schedules_own_arrivals() && !is_journey {
        return Err(Problem::new(
            key,
            "sessions, conversations and held connections have no arrivals that lanes could share; journeys have",
        ));
    }
    spec.name = Some(name.to_owned());
    Ok(LaneSpec {
        name: name.to_owned(),
        weight,
        spec,
    })
}

/// Merges `own` into `table`. Nested tables are merged key by key.
fn merge(table: &mut Table, own: Table) {
    for (key, value) in own {
        match (table.get_mut(&key), value) {
            (Some(Value::Table(inner)), Value::Table(own)) => merge(inner, own),
            (_, value) => {
                table.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::protocol::tests::GrpcSpec;

    const PLAN: &str = "target = \"grpcs://a:1\"\n[tls]\nca = \"ca.crt\"\n[call.grpc]\nmethod = \"a.B/C\"\nmessage = { json = \"{}\" }\n[load]\nrate = \"100/s\"\nconnections = 2\n[objective]\nerrors = \"< 1%\"\n";

    fn lanes(text: &str) -> Result<Vec<LaneSpec>, Problem> {
        read(&format!("{PLAN}{text}")).unwrap().lane_specs()
    }

    #[test]
    fn lanes_inherit_unset_keys_from_plan() {
        let found = lanes(
            "[lanes.browse]\nweight = 9\n[lanes.checkout]\ntarget = \"grpc://b:2\"\ncall.grpc.method = \"a.B/D\"\nload.connections = 5\nobjective.p99 = \"< 20ms\"\n[lanes.files]\ntarget = \"http://c:3\"\ncall.http.path = \"/x\"",
        )
        .unwrap();
        let names: Vec<(&str, u32)> = found.iter().map(|l| (l.name.as_str(), l.weight)).collect();
        assert_eq!(names, [("browse", 9), ("checkout", 1), ("files", 1)]);
        let (browse, checkout, files) = (&found[0].spec, &found[1].spec, &found[2].spec);
        assert_eq!(browse.target.as_deref(), Some("grpcs://a:1"));
        assert!(browse.tls.is_some() && checkout.tls.is_none() && files.tls.is_none());
        let grpc = checkout.call.get::<GrpcSpec>().unwrap();
        assert_eq!(grpc.method.as_deref(), Some("a.B/D"));
        assert!(grpc.message.is_some());
        assert_eq!(checkout.load.connections, Some(5));
        assert_eq!(browse.load.connections, Some(2));
        assert_eq!(checkout.objective.len(), 2);
        assert_eq!(files.call.present_section_names(), ["http"]);
    }

    #[test]
    fn invalid_lane_error_names_key() {
        for (text, key, word) in [
            ("[lanes.a]\n", "lanes", "2 to 16"),
            (
                "[lanes.a]\n[lanes.\"b/../../c\"]\n",
                "lanes",
                "is not a valid lane name",
            ),
            (
                "[lanes.a]\n[lanes.\"\"]\n",
                "lanes",
                "is not a valid lane name",
            ),
            (
                "[lanes.a]\nweight = 0\n[lanes.b]\n",
                "lanes.a.weight",
                "whole number",
            ),
            (
                "[lanes.a]\nload.rate = \"5/s\"\n[lanes.b]\n",
                "lanes.a.load.rate",
                "`weight`",
            ),
            (
                "[lanes.a]\nweight = 9999\n[lanes.b]\nweight = 9\n",
                "lanes",
                "add up to",
            ),
        ] {
            let problem = lanes(text).unwrap_err();
            assert_eq!(problem.key, key, "{problem}");
            assert!(problem.message.contains(word), "{problem}");
        }
        for (text, key, help) in [
            ("wieght = 9", "lanes.a.wieght", "did you mean `weight`?"),
            ("ladder = {}", "lanes.a.ladder", "the keys here are weight"),
            (
                "load.conections = 5",
                "lanes.a.load.conections",
                "did you mean `connections`?",
            ),
        ] {
            let problems = read(&format!("{PLAN}[lanes.a]\n{text}\n[lanes.b]\n")).unwrap_err();
            let problem = problems.first().unwrap();
            assert_eq!(problem.key, key, "{problem}");
            assert!(problem.message.contains("unknown key in [lanes.a"));
            assert!(problem.help.as_ref().unwrap().contains(help), "{problem:?}");
            assert!(problem.span.is_some());
        }
        let closed = PLAN.replace("rate = \"100/s\"", "clients = 5");
        let spec = read(&format!("{closed}[lanes.a]\n[lanes.b]\n")).unwrap();
        assert!(
            spec.lane_specs()
                .unwrap_err()
                .message
                .contains("closed loop")
        );
    }
}
