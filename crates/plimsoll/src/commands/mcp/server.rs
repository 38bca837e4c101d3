//! Answers the requests of one MCP client.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::Clock;
use plimsoll_model::spec;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation,
    JsonObject, ListToolsResult, PaginatedRequestParams, ProgressNotificationParam,
    ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::arguments::{
    CheckPlanArguments, CompareRunsArguments, FindLoadLineArguments, ListRunsArguments,
    PlanArgument, PlanPurpose, ReadRunArguments, RunPlanArguments,
};
use super::child_process::{ChildEvent, ChildProcess, ChildResult};
use super::run_folder::RunFolder;
use super::tools::ToolName;
use crate::failure::{Exit, Failure};
use crate::settings::load_limits::LoadLimits;

/// Description of the server that clients receive when they connect.
const INSTRUCTIONS: &str = "\
Plimsoll measures the latency of network services under load. Check a plan before you run it. Report figures with \
their intervals, and the verdict as it is: `inconclusive` is neither a pass nor a failure. One load runs at a time; \
a further one waits. The limits on targets, rates, durations and connections are set by the person who started this \
server, and errors name the flag that would change them.";

/// Prefix of the message that a failed command prints.
const ERROR_PREFIX: &str = "Error: ";

/// Time allowed in addition to the maximum load duration, for connecting, draining, and starting a ladder's servers. A
/// child that takes longer is stopped.
const LOAD_TIME_ALLOWANCE: Duration = Duration::from_secs(60);

/// The MCP server of one client.
#[derive(Clone)]
pub(super) struct McpServer {
    state: Arc<ServerState>,
}

struct ServerState {
    limits: LoadLimits,
    runs: RunFolder,
    /// Locked while a load runs, because loads that run at the same time would disturb each other's measurements.
    load: Mutex<()>,
}

/// The plan file that is passed to a child process.
struct PlanFile {
    path: PathBuf,
    /// The plan's key `name`, if it is set.
    name: Option<String>,
    /// The temporary file of a plan that was sent as text; dropping it deletes the file.
    _temporary: Option<tempfile::NamedTempFile>,
}

impl McpServer {
    pub(super) fn new(limits: LoadLimits, runs: RunFolder) -> Result<McpServer, Failure> {
        // Fail at startup, not at the first tool call, if the path of this executable can't be determined.
        std::env::current_exe()
            .map_err(|e| Failure::error(format_args!("can't find this program's file: {e}")))?;
        Ok(McpServer {
            state: Arc::new(ServerState {
                limits,
                runs,
                load: Mutex::new(()),
            }),
        })
    }

    async fn dispatch_call(
        &self,
        tool: ToolName,
        arguments: JsonObject,
        context: &RequestContext<RoleServer>,
    ) -> Result<Value, Failure> {
        match tool {
            ToolName::CheckPlan => {
                self.check_plan(&parse_arguments(tool, arguments)?, context)
                    .await
            }
            ToolName::RunPlan => {
                let arguments: RunPlanArguments = parse_arguments(tool, arguments)?;
                let flags = arguments.overrides.flags();
                self.run_load(PlanPurpose::Run, &arguments.plan, flags, context)
                    .await
            }
            ToolName::FindLoadLine => {
                let arguments: FindLoadLineArguments = parse_arguments(tool, arguments)?;
                self.run_load(
                    PlanPurpose::Find,
                    &arguments.plan,
                    arguments.flags(),
                    context,
                )
                .await
            }
            ToolName::RunLadder => {
                let arguments: RunPlanArguments = parse_arguments(tool, arguments)?;
                let flags = arguments.overrides.flags();
                self.run_load(PlanPurpose::Ladder, &arguments.plan, flags, context)
                    .await
            }
            ToolName::CompareRuns => {
                let arguments: CompareRunsArguments = parse_arguments(tool, arguments)?;
                self.run_blocking(move |runs| {
                    runs.comparison(&arguments.baseline, &arguments.candidate)
                })
                .await
            }
            ToolName::ReadRun => {
                let arguments: ReadRunArguments = parse_arguments(tool, arguments)?;
                self.run_blocking(move |runs| runs.document(&arguments.run))
                    .await
            }
            ToolName::ListRuns => {
                let arguments: ListRunsArguments = parse_arguments(tool, arguments)?;
                self.run_blocking(move |runs| {
                    runs.list(arguments.folder.as_deref(), arguments.limit)
                })
                .await
            }
            ToolName::ExplainVerdict => {
                let arguments: ReadRunArguments = parse_arguments(tool, arguments)?;
                self.run_blocking(move |runs| runs.explanation(&arguments.run))
                    .await
            }
        }
    }

    /// Runs `read` on a thread that may block on file I/O.
    async fn run_blocking(
        &self,
        work: impl FnOnce(&RunFolder) -> Result<Value, Failure> + Send + 'static,
    ) -> Result<Value, Failure> {
        let runs = self.state.runs.clone();
        let read = tokio::task::spawn_blocking(move || work(&runs)).await;
        read.map_err(Failure::error)?
    }

    async fn check_plan(
        &self,
        arguments: &CheckPlanArguments,
        context: &RequestContext<RoleServer>,
    ) -> Result<Value, Failure> {
        let plan = self.write_plan_file(&arguments.plan)?;
        let command = arguments.purpose.command();
        let mut words = child_command_line(command, &plan.path, arguments.overrides.flags());
        words.extend(["--dry-run", "--quiet"].map(str::to_owned));
        let end = self.run_child(&words, context).await?;
        if end.code != Some(0) {
            return Err(child_failure(&end));
        }
        Ok(json!({ "command": command, "would_run": end.stdout }))
    }

    /// Runs a plan in a child process, and answers from the run directory that the child wrote.
    async fn run_load(
        &self,
        purpose: PlanPurpose,
        plan: &PlanArgument,
        flags: Vec<String>,
        context: &RequestContext<RoleServer>,
    ) -> Result<Value, Failure> {
        self.state.limits.check_load_allowed()?;
        let plan = self.write_plan_file(plan)?;
        let _running = tokio::select! {
            guard = self.state.load.lock() => guard,
            () = context.ct.cancelled() => return Err(cancelled_failure()),
        };
        let name = plan.name.as_deref().unwrap_or(purpose.command());
        let dir = self.state.runs.new_run_dir(name);
        let mut words = child_command_line(purpose.command(), &plan.path, flags);
        words.push(format!("--out={}", dir.display()));
        words.extend(["--json", "--progress=lines"].map(str::to_owned));
        let end = self.run_child(&words, context).await?;
        if context.ct.is_cancelled() {
            return Err(cancelled_failure());
        }
        let Ok(mut summary) = RunFolder::summary(&dir) else {
            return Err(child_failure(&end));
        };
        summary["exit"] = json!({ "code": end.code, "means": describe_exit_code(end.code) });
        if end
            .messages
            .iter()
            .any(|line| line.starts_with(ERROR_PREFIX))
        {
            summary["error"] = json!(child_failure(&end).to_string());
        }
        Ok(summary)
    }

    /// Runs a child process until it exits, and reports progress if the client requested it.
    async fn run_child(
        &self,
        words: &[String],
        context: &RequestContext<RoleServer>,
    ) -> Result<ChildResult, Failure> {
        let clock = Clock::new();
        let began = clock.now();
        let token = context.meta.get_progress_token();
        let mut child = ChildProcess::start(words, &self.state.limits)?;
        let longest = tokio::time::sleep(self.state.limits.max_duration + LOAD_TIME_ALLOWANCE);
        tokio::pin!(longest);
        let mut is_stopped = false;
        loop {
            tokio::select! {
                event = child.next_event() => match event? {
                    ChildEvent::End(end) => return Ok(end),
                    ChildEvent::Line(line) => {
                        let Some(token) = &token else { continue };
                        let passed = clock.now().duration_since(began).as_secs_f64();
                        let progress = ProgressNotificationParam::new(token.clone(), passed);
                        // Ignore errors: if the client has disconnected, the MCP service ends on its own.
                        let _ = context.peer.notify_progress(progress.with_message(line)).await;
                    }
                },
                () = context.ct.cancelled(), if !is_stopped => {
                    child.stop();
                    is_stopped = true;
                }
                () = &mut longest, if !is_stopped => {
                    child.stop();
                    is_stopped = true;
                }
            }
        }
    }

    /// Returns the file of a plan; a plan sent as text is written to a temporary file.
    fn write_plan_file(&self, plan: &PlanArgument) -> Result<PlanFile, Failure> {
        let (path, text, temporary) = match (&plan.text, &plan.path) {
            (Some(text), None) => {
                let written = tempfile::Builder::new()
                    .prefix("plan-")
                    .suffix(".toml")
                    .tempfile()
                    .and_then(|file| std::fs::write(file.path(), text).map(|()| file));
                let file = written
                    .map_err(|e| Failure::error(format_args!("can't write the plan: {e}")))?;
                (file.path().to_owned(), text.clone(), Some(file))
            }
            (None, Some(typed)) => {
                let path = Path::new(typed);
                self.state.limits.check_file("plan.path", path)?;
                // Ignore read errors here: the child will report them.
                let text = plimsoll_model::formats::input::read_to_string(path).unwrap_or_default();
                (
                    std::path::absolute(path).map_err(Failure::error)?,
                    text,
                    None,
                )
            }
            (Some(_), Some(_)) => {
                return Err(Failure::usage(
                    "plan: both text and path are given",
                    "give one of the two",
                ));
            }
            (None, None) => {
                return Err(Failure::usage(
                    "plan: neither text nor path is given",
                    "give the text of a plan, or the path of a plan file",
                ));
            }
        };
        Ok(PlanFile {
            path,
            name: spec::read(&text).ok().and_then(|spec| spec.name),
            _temporary: temporary,
        })
    }
}

impl ServerHandler for McpServer {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("plimsoll", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = ToolName::ALL.into_iter();
        // A read-only server does not offer tools that send load.
        let offered = tools.filter(|tool| !(self.state.limits.is_read_only && tool.sends_load()));
        Ok(ListToolsResult::with_all_items(
            offered.map(ToolName::definition).collect(),
        ))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = ToolName::from_name(&request.name) else {
            return Err(ErrorData::invalid_params(
                format!("there is no tool `{}`", request.name),
                None,
            ));
        };
        let arguments = request.arguments.unwrap_or_default();
        let result = match self.dispatch_call(tool, arguments, &context).await {
            Ok(value) => CallToolResult::structured(value),
            Err(failure) => CallToolResult::error(vec![ContentBlock::text(failure.to_string())]),
        };
        Ok(result.into())
    }
}

/// Parses the arguments of a tool call.
///
/// # Errors
/// When an argument is unknown or has the wrong type.
fn parse_arguments<A: DeserializeOwned>(
    tool: ToolName,
    arguments: JsonObject,
) -> Result<A, Failure> {
    serde_json::from_value(Value::Object(arguments)).map_err(|e| {
        Failure::usage(
            format_args!("{}: {e}", tool.name()),
            "tools/list has the schema of its arguments",
        )
    })
}

/// Returns a child's command line: the command, the flags (each one word with its value), and the plan.
fn child_command_line(command: &str, plan: &Path, flags: Vec<String>) -> Vec<String> {
    let mut words = vec![command.to_owned(), plan.display().to_string()];
    words.extend(flags);
    words
}

fn cancelled_failure() -> Failure {
    Failure::error("cancelled by the client: the load was stopped")
}

/// Returns the error for a child that printed no result; its text is the child's last message.
fn child_failure(end: &ChildResult) -> Failure {
    let start = end
        .messages
        .iter()
        .rposition(|line| line.starts_with(ERROR_PREFIX));
    let lines = &end.messages[start.unwrap_or(0)..];
    let said = lines.join("\n");
    let said = said.strip_prefix(ERROR_PREFIX).unwrap_or(&said);
    if said.is_empty() {
        return Failure::error(format_args!(
            "the load left no result: {}",
            describe_exit_code(end.code)
        ));
    }
    Failure::error(said)
}

/// Describes the meaning of one of this program's exit codes.
fn describe_exit_code(code: Option<i32>) -> &'static str {
    let code = code.and_then(|code| u8::try_from(code).ok());
    match code.map(Exit::from_code) {
        Some(Exit::Done) => "done; no objective was missed",
        Some(Exit::ObjectiveMissed) => "an objective was missed",
        Some(Exit::Invalid) => "inconclusive: objectives could not be judged",
        Some(Exit::Error) => "something failed, or not one call succeeded",
        Some(Exit::Usage) => "the plan is invalid, or a limit refuses it",
        Some(Exit::Interrupted) => "interrupted: what was measured until then was kept",
        Some(Exit::Defect) => "a defect of this program",
        None => "killed",
    }
}
