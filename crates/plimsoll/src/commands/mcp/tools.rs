//! The tools offered to MCP clients: names, descriptions and schemas of their arguments.

use rmcp::model::{Tool, ToolAnnotations};
use rmcp::schemars::JsonSchema;

use super::arguments::{
    CheckPlanArguments, CompareRunsArguments, FindLoadLineArguments, ListRunsArguments,
    ReadRunArguments, RunPlanArguments,
};
/// A tool of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToolName {
    CheckPlan,
    RunPlan,
    FindLoadLine,
    RunLadder,
    CompareRuns,
    ReadRun,
    ListRuns,
    ExplainVerdict,
}

impl ToolName {
    /// All tools, in the order in which they are listed.
    pub(super) const ALL: [ToolName; 8] = [
        ToolName::CheckPlan,
        ToolName::RunPlan,
        ToolName::FindLoadLine,
        ToolName::RunLadder,
        ToolName::CompareRuns,
        ToolName::ReadRun,
        ToolName::ListRuns,
        ToolName::ExplainVerdict,
    ];

    /// Returns the tool's name in MCP messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            ToolName::CheckPlan => "check_plan",
            ToolName::RunPlan => "run_plan",
            ToolName::FindLoadLine => "find_load_line",
            ToolName::RunLadder => "run_ladder",
            ToolName::CompareRuns => "compare_runs",
            ToolName::ReadRun => "read_run",
            ToolName::ListRuns => "list_runs",
            ToolName::ExplainVerdict => "explain_verdict",
        }
    }

    /// Returns the tool with this name.
    pub(super) fn from_name(name: &str) -> Option<ToolName> {
        ToolName::ALL.into_iter().find(|tool| tool.name() == name)
    }

    /// Returns whether the tool sends load to a target.
    pub(super) fn sends_load(self) -> bool {
        matches!(
            self,
            ToolName::RunPlan | ToolName::FindLoadLine | ToolName::RunLadder
        )
    }

    /// Returns the tool's definition that is sent to clients.
    pub(super) fn definition(self) -> Tool {
        match self {
            ToolName::CheckPlan => self.describe::<CheckPlanArguments>(
                "Check a plan and show what would be run, with every default filled in. Nothing is sent.",
            ),
            ToolName::RunPlan => self.describe::<RunPlanArguments>(
                "Run a plan: put its load on its target and measure. Returns the answer in a sentence, the verdict on the \
                 objectives, each with its interval, the totals, and the run directory. Takes as long as the plan's \
                 warm-up and duration.",
            ),
            ToolName::FindLoadLine => self.describe::<FindLoadLineArguments>(
                "Search for the load line: the highest rate at which the plan's objectives are met. Returns it with its \
                 bounds, and what limited it.",
            ),
            ToolName::RunLadder => self.describe::<RunPlanArguments>(
                "Measure the variants in the plan's section [ladder] against each other, and return what each adds, \
                 with intervals that hold together.",
            ),
            ToolName::CompareRuns => self.describe::<CompareRunsArguments>(
                "Compare two runs, or two groups of runs of the same test. With fewer than about six runs a side a \
                 difference is shown without a verdict, because it may be chance.",
            ),
            ToolName::ReadRun => self.describe::<ReadRunArguments>(
                "Read a run, a search or a ladder: everything that `plimsoll report --json` prints.",
            ),
            ToolName::ListRuns => self.describe::<ListRunsArguments>(
                "List the newest runs with their answers, verdicts and objectives.",
            ),
            ToolName::ExplainVerdict => self.describe::<ReadRunArguments>(
                "Explain a run's verdict with the words of its report: what it means, which figures stand, and what to \
                 do next.",
            ),
        }
    }

    fn describe<A: JsonSchema + 'static>(self, description: &'static str) -> Tool {
        let load = self.sends_load();
        let annotations = ToolAnnotations::new()
            .read_only(!load)
            .destructive(false)
            .open_world(load);
        Tool::new(self.name(), description, serde_json::Map::new())
            .with_input_schema::<A>()
            .with_annotations(annotations)
    }
}
