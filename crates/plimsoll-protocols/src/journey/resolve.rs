//! Resolves `[[steps]]` to a journey: each step's call as the section of its protocol is resolved, and its place in the
//! journey.
//!
//! Long because the keys of a step depend on those of the steps before it and are checked together.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use plimsoll_model::spec::{
    CallSection, MetadataScope, MetadataSpec, PlanRows, Problem, Problems, ResolveContext, Spec,
    keys_of, step_name,
};
use plimsoll_model::template::{Rows, Variation};
use toml::Table;

use super::fields::{all_fields, mark_header_values};
use super::plan::{
    BranchMembership, Condition, JourneyPlan, JourneyStep, MAX_PASSES, OnFailure, Repeat,
};
use super::step_spec::{FlowSpec, PauseSpec, RepeatSpec, StepSpec, TakeTable, query_secrets};
use super::take::{Take, TakeSource};

/// The key of the steps.
const STEPS_KEY: &str = "steps";
const MAX_STEPS: usize = 200;
const MAX_REPEATS: u32 = 10_000;
const DEFAULT_ATTEMPTS: u32 = 3;
const MAX_ATTEMPTS: u32 = 100;
/// The problem with a key that journeys do not have.
const UNSUPPORTED: &str =
    "not supported in a journey, whose steps are calls with answers in one piece";
const DEFAULT_BACKOFF: Duration = Duration::from_millis(100);
/// Names that fields have without steps.
const BUILT_IN_NAMES: [&str; 7] = ["seq", "uuid", "random", "now", "client", "message", "row"];

/// A section whose calls can be the steps of a journey.
pub(crate) trait StepSection: CallSection {
    /// The key of the table of header fields or metadata.
    const FIELDS_KEY: &'static str;
    /// Keys that describe the same thing: a step that has one of them takes over none from the section.
    const CONTENT_KEYS: &'static [&'static str];
    /// Keys that are the same for all steps, and stand in the section only.
    const SHARED_KEYS: &'static [&'static str];
    /// Keys that neither the section nor a step of a journey may have.
    const UNSUPPORTED_KEYS: &'static [&'static str];
    /// Where fields for columns may stand in a step, for messages.
    const FIELD_PLACES: &'static str;

    /// Returns the section without its steps.
    #[must_use]
    fn without_steps(&self) -> Self;

    /// Reports what a journey over this section can't be, besides its keys.
    fn check_journey(&self, _problems: &mut Problems) {}

    /// Resolves the call of a step, whose keys are merged with those of the section, and returns whether it uses rows.
    fn step_call(
        &self,
        problems: &mut Problems,
        spec: &Spec,
        scope: &StepScope<'_>,
        surroundings: &dyn ResolveContext,
    ) -> Option<(Self::Call, bool)>;

    /// Returns the positions of the names whose values the call needs; they may repeat.
    fn needs(call: &Self::Call) -> Vec<usize>;

    /// Fits what is taken to the answers that the call can have.
    ///
    /// # Errors
    /// Why no answer has it.
    fn fit_take(_call: &Self::Call, _take: &mut Take) -> Result<(), String> {
        Ok(())
    }
}

/// What the templates of a call may refer to, and how their values are chosen.
pub(crate) struct StepScope<'a> {
    pub(crate) rows: Option<&'a Rows>,
    pub(crate) metadata: MetadataScope<'a>,
    pub(crate) variation: &'a Variation,
}

/// Returns the keys of the table at `path` within the steps of a section with these keys; `None`: any.
pub(crate) fn keys_within<S: StepSection>(path: &str) -> Option<&'static [&'static str]> {
    match path.split_once('.') {
        None => Some(step_keys::<S>()),
        Some((_, "take")) => None,
        Some((_, within)) if within.matches('.').count() == 1 && within.starts_with("take.") => {
            Some(keys_of::<TakeTable>())
        }
        Some((_, within)) => {
            let field = within.strip_prefix(S::FIELDS_KEY)?;
            field.starts_with('.').then(MetadataSpec::keys)
        }
    }
}

/// Returns the keys of a step: those of its place in the journey, and those of the section.
fn step_keys<S: StepSection>() -> &'static [&'static str] {
    static KEYS: Mutex<BTreeMap<&'static str, &'static [&'static str]>> =
        Mutex::new(BTreeMap::new());
    let mut known = KEYS.lock().unwrap_or_else(PoisonError::into_inner);
    known.entry(S::SCHEMES.section).or_insert_with(|| {
        let call = keys_of::<S>().iter();
        let flow = keys_of::<FlowSpec>().iter();
        let keys = flow.chain(call.filter(|key| **key != STEPS_KEY));
        keys.copied().collect::<Vec<_>>().leak()
    })
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

/// Resolves the steps of `section`, whose other keys are their defaults. Returns the journey and the call of its first
/// step; `None`: there was a problem.
pub(crate) fn resolve_journey<S: StepSection>(
    problems: &mut Problems,
    spec: &Spec,
    section: &S,
    steps: &[StepSpec],
    surroundings: &dyn ResolveContext,
) -> Option<(JourneyPlan<S::Call>, S::Call)>
where
    S::Call: Clone,
{
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
    let resolved: Vec<Option<JourneyStep<S::Call>>> = (0..)
        .zip(steps)
        .map(|(index, step)| resolver.step(index, step))
        .collect();
    let StepResolver {
        taken, uses_rows, ..
    } = resolver;
    if spec.rows.is_some() && !uses_rows {
        problems.add(
            "rows",
            format!(
                "not used by {} of any step: write {{{{row.NAME}}}} where a column belongs",
                S::FIELD_PLACES
            ),
        );
    }
    problems.users(spec);
    if problems.0.len() > before {
        return None;
    }
    let mut resolved: Vec<JourneyStep<S::Call>> = resolved.into_iter().collect::<Option<_>>()?;
    mark_header_values(&mut resolved);
    let mut fields = section.clone();
    let shared = fields
        .fields()
        .map(|fields| fields.keys().cloned().collect());
    let shared: Vec<String> = shared.unwrap_or_default();
    let (constant_fields, varying_fields) = all_fields(&shared, S::FIELDS_KEY, steps, &resolved);
    let first = resolved.first()?.call.clone();
    let journey = JourneyPlan {
        names,
        taken,
        query_secrets: query_secrets(steps),
        max_calls: max_calls(steps),
        steps: resolved,
        constant_fields,
        varying_fields,
    };
    Some((journey, first))
}

/// Reports keys that journeys do not have yet.
fn refuse_unsupported<S: StepSection>(
    problems: &mut Problems,
    spec: &Spec,
    section: &S,
    steps: &[StepSpec],
) {
    if steps.len() > MAX_STEPS {
        problems.add(STEPS_KEY, format!("too many: at most {MAX_STEPS}"));
    }
    section.check_journey(problems);
    let given = Table::try_from(section).unwrap_or_default();
    let name = S::SCHEMES.section;
    for key in S::UNSUPPORTED_KEYS
        .iter()
        .filter(|key| given.contains_key(**key))
    {
        problems.add(format!("call.{name}.{key}"), UNSUPPORTED);
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
struct StepResolver<'a, S> {
    problems: &'a mut Problems,
    spec: &'a Spec,
    section: &'a S,
    surroundings: &'a dyn ResolveContext,
    rows: Option<&'a Rows>,
    variation: Variation,
    /// The names that the steps so far bind.
    taken: Vec<String>,
    uses_rows: bool,
    forks: Forks,
}

impl<S: StepSection> StepResolver<'_, S> {
    fn step(&mut self, index: usize, step: &StepSpec) -> Option<JourneyStep<S::Call>> {
        let key = |key: &str| format!("{STEPS_KEY}.{index}.{key}");
        let condition = step
            .flow
            .condition
            .as_deref()
            .map(|text| self.condition(text));
        let condition = condition.map(|parsed| self.problems.keep(&key("if"), parsed));
        let call = self.call(index, step);
        let takes = self.takes(index, step, call.as_ref().map(|(call, _)| call));
        let repeat = self.repeat(&step.flow);
        let repeat = self.problems.keep(&key("repeat"), repeat);
        let on_failure = on_failure(&step.flow);
        let on_failure = self.problems.keep(&key("on_failure"), on_failure);
        let branch = self.forks.place(index, &step.flow);
        let branch = self.problems.keep(&key("branch"), branch);
        let (call, needs) = call?;
        Some(JourneyStep {
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
        })
    }

    /// Resolves the call of a step, and the positions of the names that it needs.
    fn call(&mut self, index: usize, step: &StepSpec) -> Option<(S::Call, Vec<usize>)> {
        let merged = match merged(self.section, &step.call) {
            Ok(merged) => merged,
            Err(problem) => {
                self.problems.add(format!("{STEPS_KEY}.{index}"), problem);
                return None;
            }
        };
        let section = S::SCHEMES.section;
        let mut own = Problems::default();
        let given = |key: &&&str| step.call.contains_key(**key);
        for key in S::SHARED_KEYS.iter().chain(&[STEPS_KEY]).filter(given) {
            own.add(
                format!("call.{section}.{key}"),
                format!("the same for all steps: write it in [call.{section}]"),
            );
        }
        for key in S::UNSUPPORTED_KEYS.iter().filter(given) {
            own.add(format!("call.{section}.{key}"), UNSUPPORTED);
        }
        let scope = StepScope {
            rows: self.rows,
            metadata: MetadataScope {
                rows: PlanRows::of(self.rows, self.spec),
                taken: &self.taken,
            },
            variation: &self.variation,
        };
        let resolved = if own.0.is_empty() {
            merged.step_call(&mut own, self.spec, &scope, self.surroundings)
        } else {
            None
        };
        let prefix = format!("call.{section}.");
        let within = |problem: Problem| Problem {
            key: match problem.key.strip_prefix(&prefix) {
                Some(rest) => format!("{STEPS_KEY}.{index}.{rest}"),
                None => problem.key,
            },
            ..problem
        };
        self.problems.0.extend(own.0.into_iter().map(within));
        let (call, uses_rows) = resolved?;
        self.uses_rows |= uses_rows;
        let needs: HashSet<usize> = S::needs(&call).into_iter().collect();
        let mut needs: Vec<usize> = needs.into_iter().collect();
        needs.sort_unstable();
        Some((call, needs))
    }

    fn takes(
        &mut self,
        index: usize,
        step: &StepSpec,
        call: Option<&S::Call>,
    ) -> Option<Vec<Take>> {
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
            let mut take = Take {
                name: self.bind(name),
                source,
                is_optional,
                is_in_header: false,
            };
            let fitted = call.map_or(Ok(()), |call| S::fit_take(call, &mut take));
            is_good &= self.problems.keep(&key, fitted).is_some();
            takes.push(take);
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

/// Returns the call of a step: its own keys, and those of the section for the others. Header fields are those of both,
/// and content of the step replaces that of the section.
fn merged<S: StepSection>(section: &S, own: &Table) -> Result<S, String> {
    let mut table = Table::try_from(section.without_steps()).map_err(|e| e.to_string())?;
    if S::CONTENT_KEYS.iter().any(|key| own.contains_key(*key)) {
        for key in S::CONTENT_KEYS {
            table.remove(*key);
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
    S::deserialize(table).map_err(|e| e.message().to_owned())
}
