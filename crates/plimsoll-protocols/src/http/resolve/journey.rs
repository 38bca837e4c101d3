//! Resolves `[[steps]]` to a journey: each step's request as `[call.http]` is resolved, and its place in the journey.
//!
//! Long because the keys of a step depend on those of the steps before it and are checked together.

use std::collections::HashSet;
use std::sync::OnceLock;
use std::time::Duration;

use plimsoll_model::spec::{
    MetadataScope, MetadataSpec, PlanRows, Problem, Problems, ResolveContext, Spec, keys_of,
    step_name,
};
use plimsoll_model::template::{Rows, Template, Variation};
use serde::Deserialize;
use toml::Table;

use super::journey_fields::{all_fields, mark_header_values, sends_form, templates};
use super::{CallScope, step_call};
use crate::http::call::journey::{
    BranchMembership, Condition, JourneyPlan, JourneyStep, MAX_PASSES, OnFailure, Repeat,
};
use crate::http::call::{HttpCall, HttpVersion, VaryingHttp};
use crate::http::section::HttpSpec;
use crate::http::step_spec::{FlowSpec, PauseSpec, RepeatSpec, StepSpec, TakeTable, query_secrets};
use crate::http::take::{Take, TakeSource};

/// The key of the steps.
const STEPS_KEY: &str = "steps";
const MAX_STEPS: usize = 200;
const MAX_REPEATS: u32 = 10_000;
const DEFAULT_ATTEMPTS: u32 = 3;
const MAX_ATTEMPTS: u32 = 100;
const DEFAULT_BACKOFF: Duration = Duration::from_millis(100);
/// Names that fields have without steps.
const BUILT_IN_NAMES: [&str; 7] = ["seq", "uuid", "random", "now", "client", "message", "row"];

/// Returns the keys of a step: those of its place in the journey, and those of `[call.http]`.
fn step_keys() -> &'static [&'static str] {
    static KEYS: OnceLock<Vec<&'static str>> = OnceLock::new();
    KEYS.get_or_init(|| {
        let call = keys_of::<HttpSpec>().iter();
        let flow = keys_of::<FlowSpec>().iter();
        flow.chain(call.filter(|key| **key != "steps"))
            .copied()
            .collect()
    })
}

/// Returns the keys of the table at `path` within the steps; `None`: any.
pub(super) fn keys_within(path: &str) -> Option<&'static [&'static str]> {
    match path.split_once('.') {
        None => Some(step_keys()),
        Some((_, "take")) => None,
        Some((_, within)) if within.matches('.').count() == 1 && within.starts_with("take.") => {
            Some(keys_of::<TakeTable>())
        }
        Some((_, within)) => within.starts_with("headers.").then(MetadataSpec::keys),
    }
}

/// Returns the most calls that a user of these steps makes, as far as it is known before resolution.
fn max_calls(steps: &[StepSpec]) -> u32 {
    let calls = steps.iter().map(|step| {
        let flow = &step.flow;
        let passes = match &flow.repeat {
            None => 1,
            Some(RepeatSpec::Times(times)) => *times,
            Some(RepeatSpec::While(_)) => MAX_PASSES,
        };
        passes.saturating_mul(attempts_of(flow))
    });
    calls.fold(0, u32::saturating_add).max(1)
}

fn attempts_of(flow: &FlowSpec) -> u32 {
    match flow.on_failure.as_deref() {
        Some("retry") => flow.attempts.unwrap_or(DEFAULT_ATTEMPTS),
        _ => 1,
    }
}

/// Resolves the steps of `section`, whose other keys are their defaults. `None`: there was a problem.
pub(super) fn journey(
    problems: &mut Problems,
    spec: &Spec,
    section: &HttpSpec,
    steps: &[StepSpec],
    surroundings: &dyn ResolveContext,
) -> Option<HttpCall> {
    let before = problems.0.len();
    refuse_unsupported(problems, spec, section, steps);
    let names = step_names(problems, steps);
    let rows = problems.rows(spec, surroundings);
    if spec.rows.is_some() && rows.is_none() {
        return None;
    }
    let variation = problems
        .variation(spec, rows.as_ref())
        .with_rows_by_arrival()
        .in_a_row(max_calls(steps));
    let mut resolver = StepResolver {
        problems,
        spec,
        section,
        surroundings,
        rows: rows.as_ref(),
        variation,
        taken: Vec::new(),
        uses_rows: false,
        forks: Forks::default(),
    };
    let resolved: Vec<Option<JourneyStep>> = (0..)
        .zip(steps)
        .map(|(index, step)| resolver.step(index, step))
        .collect();
    let StepResolver {
        taken, uses_rows, ..
    } = resolver;
    if spec.rows.is_some() && !uses_rows {
        problems.add(
            "rows",
            "not used by path, headers or body of any step: write {{row.NAME}} where a column belongs",
        );
    }
    problems.users(spec);
    if problems.0.len() > before {
        return None;
    }
    let mut steps_resolved: Vec<JourneyStep> = resolved.into_iter().collect::<Option<_>>()?;
    mark_header_values(&mut steps_resolved);
    let (constant_fields, varying_fields) = all_fields(section, steps, &steps_resolved);
    let first = steps_resolved.first()?.call.clone();
    Some(HttpCall {
        journey: Some(Box::new(JourneyPlan {
            names,
            taken,
            query_secrets: query_secrets(steps),
            max_calls: max_calls(steps),
            steps: steps_resolved,
            constant_fields,
            varying_fields,
        })),
        ..first
    })
}

/// Reports keys that journeys do not have yet.
fn refuse_unsupported(
    problems: &mut Problems,
    spec: &Spec,
    section: &HttpSpec,
    steps: &[StepSpec],
) {
    if steps.len() > MAX_STEPS {
        problems.add(STEPS_KEY, format!("too many: at most {MAX_STEPS}"));
    }
    if section.version == Some(HttpVersion::Auto) {
        problems.add(
            "call.http.version",
            "a journey has one version: use \"1.1\" or \"2\"",
        );
    }
    for (is_given, key) in [
        (section.websocket.is_some(), "websocket"),
        (section.conversation.is_some(), "conversation"),
        (section.stream.is_some(), "stream"),
        (section.api.is_some(), "api"),
        (section.tokenizer.is_some(), "tokenizer"),
        (section.goodput.is_some(), "goodput"),
    ] {
        if is_given {
            problems.add(
                format!("call.http.{key}"),
                "not supported in a journey, whose steps are requests with answers in one piece",
            );
        }
    }
    if spec.load.recording_key().is_some() && spec.rows.is_none() {
        problems.add(
            "load.replay",
            "a replay's lines are requests, and a journey has its own: replay only their times by load.arrivals",
        );
    }
    let is_unconditional = |step: &StepSpec| step.flow.condition.is_none();
    if !steps.first().is_some_and(is_unconditional) {
        let key = format!("{STEPS_KEY}.0.if");
        problems.add(
            key,
            "the first step is always made: nothing is bound before it",
        );
    }
    if steps.first().is_some_and(|step| step.flow.pause.is_some()) {
        problems.add(
            format!("{STEPS_KEY}.0.pause"),
            "the first step is due when its user arrives: the pause between journeys is load.think",
        );
    }
}

/// Returns the names of the steps, and reports those that are given twice.
fn step_names(problems: &mut Problems, steps: &[StepSpec]) -> Vec<String> {
    let mut seen = HashSet::new();
    let mut names = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let given = step.flow.name.clone();
        let name = given.unwrap_or_else(|| step_name(&step.call));
        if name.trim().is_empty() || name.chars().any(char::is_control) {
            let key = format!("{STEPS_KEY}.{index}.name");
            problems.add(key, "not a name: use printable characters");
        }
        if !seen.insert(name.clone()) {
            let key = format!("{STEPS_KEY}.{index}.name");
            let problem = format!("`{name}` is the name of an earlier step: give each its own");
            problems.add(key, problem);
        }
        names.push(name);
    }
    names
}

/// The forks of a journey, in the order of its steps.
#[derive(Default)]
struct Forks {
    count: u32,
    /// The names of the branches of the current fork; empty between forks.
    branches: Vec<String>,
}

impl Forks {
    /// Returns the place of a step that belongs to a branch, and ends the current fork for one that does not.
    fn place(&mut self, index: usize, flow: &FlowSpec) -> Result<Option<BranchMembership>, String> {
        let name = match (&flow.branch, flow.weight) {
            (Some(name), _) => name.clone(),
            (None, Some(_)) => format!("step {index}"),
            (None, None) => {
                self.branches.clear();
                return Ok(None);
            }
        };
        if flow.weight == Some(0) {
            return Err("0: a branch that is never taken; leave the step out".to_owned());
        }
        if self.branches.is_empty() {
            self.count += 1;
        }
        let known = self.branches.iter().position(|branch| *branch == name);
        let is_last = known.is_some_and(|branch| branch + 1 == self.branches.len());
        if known.is_some() && !is_last {
            return Err(format!("`{name}`: the steps of a branch follow each other"));
        }
        if known.is_some() && flow.weight.is_some() {
            return Err(format!(
                "`{name}`: the weight belongs to the first step of a branch"
            ));
        }
        let branch = known.unwrap_or_else(|| {
            self.branches.push(name);
            self.branches.len() - 1
        });
        Ok(Some(BranchMembership {
            fork: self.count,
            branch: branch as u32,
            weight: if known.is_some() {
                0
            } else {
                flow.weight.unwrap_or(1)
            },
        }))
    }
}

/// Resolves one step after the other.
struct StepResolver<'a> {
    problems: &'a mut Problems,
    spec: &'a Spec,
    section: &'a HttpSpec,
    surroundings: &'a dyn ResolveContext,
    rows: Option<&'a Rows>,
    variation: Variation,
    /// The names that the steps so far bind.
    taken: Vec<String>,
    uses_rows: bool,
    forks: Forks,
}

impl StepResolver<'_> {
    fn step(&mut self, index: usize, step: &StepSpec) -> Option<JourneyStep> {
        let key = |key: &str| format!("{STEPS_KEY}.{index}.{key}");
        let condition = step
            .flow
            .condition
            .as_deref()
            .map(|text| self.condition(text));
        let condition = condition.map(|parsed| self.problems.keep(&key("if"), parsed));
        let call = self.call(index, step);
        let takes = self.takes(index, step);
        let repeat = self.repeat(&step.flow);
        let repeat = self.problems.keep(&key("repeat"), repeat);
        let on_failure = on_failure(&step.flow);
        let on_failure = self.problems.keep(&key("on_failure"), on_failure);
        let branch = self.forks.place(index, &step.flow);
        let branch = self.problems.keep(&key("branch"), branch);
        let (call, needs, has_own_cookies) = call?;
        let path = call.varying.as_ref().and_then(|all| all.path.as_ref());
        let path_name = path.and_then(Template::leading_taken).map(usize::from);
        Some(JourneyStep {
            path_name,
            call,
            takes: takes?,
            needs,
            pause: step.flow.pause.unwrap_or(PauseSpec::Fixed(Duration::ZERO)),
            repeat: repeat?,
            condition: match condition {
                None => None,
                Some(parsed) => Some(parsed?),
            },
            branch: branch?,
            on_failure: on_failure?,
            has_own_cookies,
        })
    }

    /// Resolves the request of a step, the positions of the names that it needs, and whether it has cookies of its own.
    fn call(&mut self, index: usize, step: &StepSpec) -> Option<(HttpCall, Vec<usize>, bool)> {
        let merged = match merged(self.section, &step.call) {
            Ok(merged) => merged,
            Err(problem) => {
                self.problems.add(format!("{STEPS_KEY}.{index}"), problem);
                return None;
            }
        };
        let mut own = Problems::default();
        for key in [
            "version",
            "max_body",
            "max_head",
            "deadline",
            "steps",
            "typed_names",
        ] {
            if step.call.contains_key(key) {
                own.add(
                    format!("call.http.{key}"),
                    "the same for all steps: write it in [call.http]",
                );
            }
        }
        for key in [
            "websocket",
            "conversation",
            "stream",
            "tokenizer",
            "goodput",
        ] {
            if step.call.contains_key(key) {
                own.add(
                    format!("call.http.{key}"),
                    "not supported in a journey, whose steps are requests with answers in one piece",
                );
            }
        }
        let scope = CallScope {
            rows: self.rows,
            metadata: MetadataScope {
                rows: PlanRows::of(self.rows, self.spec),
                taken: &self.taken,
            },
            variation: &self.variation,
        };
        let resolved = if own.0.is_empty() {
            step_call(&mut own, self.spec, &merged, &scope, self.surroundings)
        } else {
            None
        };
        let within = |problem: Problem| Problem {
            key: match problem.key.strip_prefix("call.http.") {
                Some(rest) => format!("{STEPS_KEY}.{index}.{rest}"),
                None => problem.key,
            },
            ..problem
        };
        self.problems.0.extend(own.0.into_iter().map(within));
        let (call, uses_rows) = resolved?;
        self.uses_rows |= uses_rows;
        let has_own_cookies = merged
            .headers
            .keys()
            .any(|name| name.eq_ignore_ascii_case("cookie"));
        let needs = templates(&call).flat_map(Template::needs).map(usize::from);
        let needs: HashSet<usize> = needs.collect();
        let mut needs: Vec<usize> = needs.into_iter().collect();
        needs.sort_unstable();
        Some((
            always_varying(call, &self.variation),
            needs,
            has_own_cookies,
        ))
    }

    fn takes(&mut self, index: usize, step: &StepSpec) -> Option<Vec<Take>> {
        let mut takes = Vec::new();
        let mut is_good = true;
        for (name, typed) in &step.flow.take {
            let key = format!("{STEPS_KEY}.{index}.take.{name}");
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            if name.is_empty() || !name.chars().all(is_name) {
                self.problems
                    .add(&*key, "not a name: use letters, digits, `_` and `-`");
                is_good = false;
            }
            if BUILT_IN_NAMES.contains(&name.as_str()) {
                let problem = format!("{{{{{name}}}}} has a value already: use another name");
                self.problems.add(&*key, problem);
                is_good = false;
            }
            let Some((source, is_optional)) = self.problems.keep(&key, TakeSource::parse(typed))
            else {
                is_good = false;
                continue;
            };
            takes.push(Take {
                name: self.bind(name),
                source,
                is_optional,
                is_in_header: false,
            });
        }
        is_good.then_some(takes)
    }

    /// Returns the position of a name that an answer binds.
    fn bind(&mut self, name: &str) -> usize {
        self.position(name).unwrap_or_else(|_| {
            self.taken.push(name.to_owned());
            self.taken.len() - 1
        })
    }

    fn position(&self, name: &str) -> Result<usize, String> {
        let found = self.taken.iter().position(|taken| taken == name);
        found.ok_or_else(|| match &*self.taken {
            [] => format!("`{name}` is bound by no earlier step: write take.{name} there"),
            known => format!(
                "`{name}` is bound by no earlier step: those bind {}",
                known.join(", ")
            ),
        })
    }

    fn condition(&self, text: &str) -> Result<Condition, String> {
        let compared = |operator: &str, is_negated: bool| {
            let (name, value) = text.split_once(operator)?;
            Some((name.trim(), Some(value.trim().to_owned()), is_negated))
        };
        let (name, value, is_negated) = compared("==", false)
            .or_else(|| compared("!=", true))
            .unwrap_or_else(|| match text.trim().strip_prefix('!') {
                Some(name) => (name.trim(), None, true),
                None => (text.trim(), None, false),
            });
        Ok(Condition {
            name: self.position(name)?,
            value,
            is_negated,
        })
    }

    fn repeat(&self, flow: &FlowSpec) -> Result<Repeat, String> {
        match &flow.repeat {
            None => Ok(Repeat::Times(1)),
            Some(RepeatSpec::Times(times @ 1..=MAX_REPEATS)) => Ok(Repeat::Times(*times)),
            Some(RepeatSpec::Times(times)) => Err(format!("{times} times: use 1 to {MAX_REPEATS}")),
            Some(RepeatSpec::While(text)) => match text.strip_prefix("while ") {
                Some(name) => self.position(name.trim()).map(Repeat::While),
                None => Err(format!("`{text}`: write a number, or \"while NAME\"")),
            },
        }
    }
}

fn on_failure(flow: &FlowSpec) -> Result<OnFailure, String> {
    let is_for_retries = flow.attempts.is_some() || flow.backoff.is_some();
    match flow.on_failure.as_deref() {
        None | Some("end" | "continue") if is_for_retries => {
            Err("attempts and backoff belong to on_failure = \"retry\"".to_owned())
        }
        None | Some("end") => Ok(OnFailure::End),
        Some("continue") => Ok(OnFailure::Continue),
        Some("retry") => match flow.attempts.unwrap_or(DEFAULT_ATTEMPTS) {
            attempts @ 2..=MAX_ATTEMPTS => Ok(OnFailure::Retry {
                attempts,
                backoff: flow.backoff.map_or(DEFAULT_BACKOFF, |period| period.0),
            }),
            attempts => Err(format!("{attempts} attempts: use 2 to {MAX_ATTEMPTS}")),
        },
        Some(other) => Err(format!(
            "`{other}` is unknown: use \"end\", \"continue\" or \"retry\""
        )),
    }
}

/// Returns the request of a step: its own keys, and those of the section for the others. Header fields are those of
/// both, and a body of the step replaces that of the section.
fn merged(section: &HttpSpec, own: &Table) -> Result<HttpSpec, String> {
    let defaults = HttpSpec {
        steps: None,
        ..section.clone()
    };
    let mut table = Table::try_from(&defaults).map_err(|e| e.to_string())?;
    const CONTENT_KEYS: [&str; 3] = ["body", "body_file", "form"];
    if CONTENT_KEYS.iter().any(|key| own.contains_key(*key)) {
        for key in CONTENT_KEYS {
            table.remove(key);
        }
    }
    for (key, value) in own {
        match (
            table.get_mut(key).and_then(|before| before.as_table_mut()),
            value,
        ) {
            (Some(before), toml::Value::Table(more)) => before.extend(more.clone()),
            _ => {
                table.insert(key.clone(), value.clone());
            }
        }
    }
    HttpSpec::deserialize(table).map_err(|e| e.message().to_owned())
}

/// Returns the request as one that is rendered for every call, with values encoded as its path and a form's text need.
fn always_varying(mut call: HttpCall, variation: &Variation) -> HttpCall {
    let mut varying = call.varying.take().unwrap_or_else(|| VaryingHttp {
        variation: variation.clone(),
        path: None,
        headers: Vec::new(),
        body: None,
    });
    let path = varying.path.take();
    varying.path = Some(path.unwrap_or_else(|| Template::text(&call.path)).in_url());
    if let Some(body) = varying.body.as_mut().filter(|_| sends_form(&call.headers)) {
        body.template = body.template.clone().in_form();
    }
    call.varying = Some(varying);
    call
}
