//! The arguments of tools, as clients send them, and the words of the command line that they stand for.

use rmcp::schemars::JsonSchema;
use serde::Deserialize;

/// A plan: exactly one of its text and its path.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct PlanArgument {
    /// The text of a plan (TOML), such as `target = "http://127.0.0.1:8080/"` and sections [load] and [objective].
    pub(super) text: Option<String>,
    /// The path of a plan file in the folder in which the server was started.
    pub(super) path: Option<String>,
}

/// Keys of the plan's load that a tool call replaces.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct LoadOverrides {
    /// The target, instead of the plan's: a URL such as grpc://127.0.0.1:50051 or http://127.0.0.1:8080/path.
    pub(super) target: Option<String>,
    /// Calls per second, such as "500/s". A search starts at this rate.
    pub(super) rate: Option<String>,
    /// How long to measure, such as "10s". A search has a budget instead.
    pub(super) duration: Option<String>,
    /// Warm-up: time at the start that is not included in the totals, such as "2s".
    pub(super) warmup: Option<String>,
    /// The number of connections.
    pub(super) connections: Option<u32>,
    /// Objectives to add, such as "p99 < 10ms" or "errors < 0.1%".
    pub(super) objectives: Vec<String>,
}

impl LoadOverrides {
    /// Returns the flags for these keys, each as one word (`--flag=value`), so that a value can't be parsed as a flag.
    pub(super) fn flags(&self) -> Vec<String> {
        let connections = self.connections.map(|n| n.to_string());
        let single = [
            ("--target", &self.target),
            ("--rate", &self.rate),
            ("--duration", &self.duration),
            ("--warmup", &self.warmup),
            ("--connections", &connections),
        ];
        let objectives = self.objectives.iter().map(|o| ("--objective", o));
        let single = single.into_iter();
        single
            .filter_map(|(flag, value)| Some((flag, value.as_ref()?)))
            .chain(objectives)
            .map(|(flag, value)| format!("{flag}={value}"))
            .collect()
    }
}

/// Arguments of `check_plan`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct CheckPlanArguments {
    /// The plan to check.
    pub(super) plan: PlanArgument,
    /// What the plan would be used for. Default: run.
    #[serde(default)]
    pub(super) purpose: PlanPurpose,
    /// Keys of the plan to replace.
    #[serde(default)]
    pub(super) overrides: LoadOverrides,
}

/// The command that a plan is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(crate = "rmcp::schemars")]
pub(super) enum PlanPurpose {
    /// One run, as `run_plan` makes it.
    #[default]
    Run,
    /// A search, as `find_load_line` makes it.
    Find,
    /// A ladder, as `run_ladder` makes it.
    Ladder,
}

impl PlanPurpose {
    /// Returns the command of this program.
    pub(super) fn command(self) -> &'static str {
        match self {
            PlanPurpose::Run => "run",
            PlanPurpose::Find => "find",
            PlanPurpose::Ladder => "ladder",
        }
    }
}

/// Arguments of `run_plan` and `run_ladder`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct RunPlanArguments {
    /// The plan to run.
    pub(super) plan: PlanArgument,
    /// Keys of the plan to replace.
    #[serde(default)]
    pub(super) overrides: LoadOverrides,
}

/// Arguments of `find_load_line`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct FindLoadLineArguments {
    /// The plan whose load line (the highest rate that meets the objectives) is searched for; it needs an objective.
    pub(super) plan: PlanArgument,
    /// Keys of the plan to replace.
    #[serde(default)]
    pub(super) overrides: LoadOverrides,
    /// The highest rate to try, such as "5000/s". Default: the server's limit.
    #[serde(default)]
    pub(super) most: Option<String>,
    /// The search ends within this time, such as "30s". Default: the server's limit.
    #[serde(default)]
    pub(super) budget: Option<String>,
    /// The width of the bounds at which the search ends, such as "5%". Default: 1%.
    #[serde(default)]
    pub(super) precision: Option<String>,
}

impl FindLoadLineArguments {
    /// Returns the flags of the load, followed by the flags of the search.
    pub(super) fn flags(&self) -> Vec<String> {
        let own = [
            ("--most", &self.most),
            ("--budget", &self.budget),
            ("--precision", &self.precision),
        ];
        let own = own.into_iter();
        let own = own.filter_map(|(flag, value)| Some(format!("{flag}={}", value.as_ref()?)));
        self.overrides.flags().into_iter().chain(own).collect()
    }
}

/// Arguments of `read_run` and `explain_verdict`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct ReadRunArguments {
    /// A run directory of the server's folder, as other tools return it; LATEST is the newest.
    pub(super) run: String,
}

/// Arguments of `compare_runs`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct CompareRunsArguments {
    /// Runs to compare with; about six are needed to judge a difference.
    pub(super) baseline: Vec<String>,
    /// Runs to judge; about six are needed to judge a difference.
    pub(super) candidate: Vec<String>,
}

/// Arguments of `list_runs`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct ListRunsArguments {
    /// A folder below the server's folder of runs. Default: the whole folder of runs.
    pub(super) folder: Option<String>,
    /// The maximum number of runs to list, newest first. Default: 20.
    pub(super) limit: Option<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn override_value_cannot_become_another_flag() {
        let overrides = LoadOverrides {
            target: Some("--out=/tmp".to_owned()),
            connections: Some(3),
            objectives: vec!["p99 < 1ms".to_owned(), "errors < 1%".to_owned()],
            ..LoadOverrides::default()
        };
        assert_eq!(
            overrides.flags(),
            [
                "--target=--out=/tmp",
                "--connections=3",
                "--objective=p99 < 1ms",
                "--objective=errors < 1%"
            ]
        );
    }

    #[test]
    fn unknown_argument_is_rejected() {
        let read = |text| serde_json::from_str::<RunPlanArguments>(text).map(|_| ());
        assert!(read(r#"{"plan": {"text": ""}, "overrides": {"rate": "1/s"}}"#).is_ok());
        let wrong = read(r#"{"plan": {"text": ""}, "overrides": {"rte": "1/s"}}"#);
        assert!(wrong.unwrap_err().to_string().contains("`rte`"));
    }
}
