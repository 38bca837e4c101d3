//! Resolves `[[steps]]` to a journey: each step's call, by the rules of its protocol's section, and its repeats,
//! branch, condition and retries.
//!
//! This file is long because the keys of a step depend on those of earlier steps, so they are checked together.

use std::collections::HashSet;
use std::time::Duration;

use plimsoll_model::formats::redaction;
use plimsoll_model::formats::suggest::suggest;
use plimsoll_model::plan::CallPlan;
use plimsoll_model::rows::template::{Rows, VariationSettings};
use plimsoll_model::spec::{
    MetadataScope, PlanRows, Problem, Problems, ResolveContext, Spec, scheme_alias, step_name,
};
use toml::Table;

use super::capture::{CaptureRule, CaptureSource};
use super::conditions::{find_name, parse_condition, resolve_repeat};
use super::failures::{max_calls, resolve_on_failure};
use super::fields::{collect_fields, mark_header_values};
use super::forks::JourneyForks;
use super::keys::{STEPS_KEY, merge_call_keys};
use super::literal_texts::LiteralTextCheck;
use super::loops::{JourneyLoops, later_steps_of_loop};
use super::plan::{JourneyPlan, JourneyStep};
use super::step_module::{self, StepModule, StepScope, StepSection};
use super::step_spec::{PauseSpec, StepControlSpec, StepSpec, query_string_secrets};
use super::targets::{SharedKeys, resolve_targets};

const MAX_STEPS: usize = 200;
/// The message for a key that is not supported in a journey.
const UNSUPPORTED_KEY_MESSAGE: &str =
    "not supported in a journey, whose steps are calls with answers in one piece";
/// Names of built-in template fields, which steps can't bind.
const BUILT_IN_NAMES: [&str; 7] = ["seq", "uuid", "random", "now", "client", "message", "row"];

/// Resolves the steps of `section`, whose other keys are defaults for the steps. Returns the journey and the call of
/// the first step that goes to the plan's own target, or `None` if there was a problem.
pub(crate) fn resolve_journey<S: StepSection>(
    problems: &mut Problems,
    spec: &Spec,
    section: &S,
    steps: &[StepSpec],
    surroundings: &dyn ResolveContext,
) -> Option<(JourneyPlan, S::Call)>
where
    S::Call: Clone,
{
    let before = problems.0.len();
    let module = step_module::find_module(S::SCHEMES.section)?;
    let mut defaults = Table::try_from(section).unwrap_or_default();
    defaults.remove(STEPS_KEY);
    reject_unsupported_keys(problems, spec, module, &defaults, steps);
    let of_target = spec
        .target
        .as_deref()
        .filter(|url| scheme_alias(url).is_some());
    let of_target = of_target.and_then(step_module::find_module_for_url);
    let own_module = of_target.unwrap_or(module);
    if own_module != module {
        reject_inherited_keys(problems, module, &std::mem::take(&mut defaults));
    }
    let names = resolve_step_names(problems, steps);
    let (targets, links) = resolve_targets(problems, spec, own_module, steps);
    let rows = problems.resolve_rows(spec, surroundings);
    if spec.rows.is_some() && rows.is_none() {
        return None;
    }
    let variation = problems
        .resolve_variation(spec, rows.as_ref())
        .with_rows_by_arrival()
        .with_calls_per_client(max_calls(steps));
    let mut resolver = StepResolver {
        problems,
        spec,
        module: own_module,
        defaults,
        surroundings,
        rows: rows.as_ref(),
        variation,
        taken: Vec::new(),
        bound_names: bound_names(steps),
        uses_rows: false,
        forks: JourneyForks::default(),
        loops: JourneyLoops::default(),
        links,
        shared_keys: SharedKeys::default(),
    };
    resolver.shared_keys.set_own(own_module, &resolver.defaults);
    let resolved: Vec<Option<JourneyStep>> = (0..)
        .zip(steps)
        .map(|(index, step)| {
            resolver.bind_later_names(&steps[index..]);
            resolver.resolve_step(index, step)
        })
        .collect();
    let StepResolver {
        taken,
        uses_rows,
        loops,
        variation,
        ..
    } = resolver;
    if spec.rows.is_some() && !uses_rows {
        problems.add(
            "rows",
            "not used by any step: write {{row.NAME}} where a column belongs",
        );
    }
    problems.report_user_load_conflicts(spec);
    if problems.0.len() > before {
        return None;
    }
    let mut resolved: Vec<JourneyStep> = resolved.into_iter().collect::<Option<_>>()?;
    let loops = loops.finish(problems, &resolved, &taken);
    if problems.0.len() > before {
        return None;
    }
    mark_header_values(&mut resolved);
    let mut fields = section.clone();
    let shared = fields.fields().into_iter();
    let shared: Vec<String> = shared.flat_map(|fields| fields.keys().cloned()).collect();
    let (constant_fields, varying_fields) = collect_fields(&shared, steps, &resolved);
    let first = first_own_call::<S>(problems, &resolved)?;
    let journey = JourneyPlan {
        names,
        taken,
        targets,
        query_secrets: query_string_secrets(steps),
        max_calls: max_calls(steps),
        variation,
        loops,
        steps: resolved,
        constant_fields,
        varying_fields,
    };
    Some((journey, first))
}

/// Returns the call of the first step that goes to the plan's own target, and reports that there is none.
fn first_own_call<S: StepSection>(problems: &mut Problems, steps: &[JourneyStep]) -> Option<S::Call>
where
    S::Call: Clone,
{
    let first = steps.iter().find(|step| step.link == 0);
    let first = first.map(|step| (step.module.to_section_call)(&step.call));
    let first: Option<&S::Call> = first.as_ref().and_then(|call| call.downcast_ref());
    if first.is_none() {
        problems.add("target", "no step calls it: all have a target of their own");
    }
    first.cloned()
}

/// Reports keys that are not supported in a journey.
fn reject_unsupported_keys(
    problems: &mut Problems,
    spec: &Spec,
    module: &StepModule,
    defaults: &Table,
    steps: &[StepSpec],
) {
    if steps.len() > MAX_STEPS {
        problems.add(STEPS_KEY, format!("too many: at most {MAX_STEPS}"));
    }
    (module.check_journey)(defaults, problems);
    let section = module.schemes.section;
    let given = |key: &&&str| defaults.contains_key(**key);
    for key in module.unsupported_keys.iter().filter(given) {
        problems.add(format!("call.{section}.{key}"), UNSUPPORTED_KEY_MESSAGE);
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
    let is_single = |flow: &StepControlSpec| flow.repeat.is_none() && flow.in_loop.is_none();
    if steps
        .first()
        .is_some_and(|step| step.flow.pause.is_some() && is_single(&step.flow))
    {
        problems.add(
            format!("{STEPS_KEY}.0.pause"),
            "the first step is due when its user arrives: the pause between journeys is load.think",
        );
    }
}

/// Reports keys of the section that steps of this protocol do not inherit, except those that every saved plan has.
fn reject_inherited_keys(problems: &mut Problems, module: &StepModule, defaults: &Table) {
    let section = module.schemes.section;
    let is_kept = |key: &&String| ["version", "deadline"].contains(&key.as_str());
    for key in defaults.keys().filter(|key| !is_kept(key)) {
        problems.add(
            format!("call.{section}.{key}"),
            "not used by steps over WebSocket: write in each step what it needs",
        );
    }
}

/// Returns the names that the steps bind.
fn bound_names(steps: &[StepSpec]) -> Vec<String> {
    let names = steps.iter().flat_map(|step| step.flow.take.keys());
    names.cloned().collect()
}

/// Returns the names of the steps, and reports invalid and duplicate names.
fn resolve_step_names(problems: &mut Problems, steps: &[StepSpec]) -> Vec<String> {
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

/// The resolver of steps, which are resolved in order, with the state that later steps need from earlier ones.
struct StepResolver<'a> {
    problems: &'a mut Problems,
    spec: &'a Spec,
    /// The protocol of the plan's own target; `defaults` are the keys of its section.
    module: &'static StepModule,
    defaults: Table,
    surroundings: &'a dyn ResolveContext,
    rows: Option<&'a Rows>,
    variation: VariationSettings,
    /// The names that the steps resolved so far bind.
    taken: Vec<String>,
    /// The names that any of the steps binds.
    bound_names: Vec<String>,
    uses_rows: bool,
    forks: JourneyForks,
    loops: JourneyLoops,
    /// The link of each step.
    links: Vec<u8>,
    shared_keys: SharedKeys,
}

impl StepResolver<'_> {
    fn resolve_step(&mut self, index: usize, step: &StepSpec) -> Option<JourneyStep> {
        let key = |key: &str| format!("{STEPS_KEY}.{index}.{key}");
        let condition = step
            .flow
            .condition
            .as_deref()
            .map(|text| parse_condition(&self.taken, text));
        let condition = condition.map(|parsed| self.problems.ok_or_report(&key("if"), parsed));
        let call = self.resolve_call(index, step);
        let takes = self.resolve_captures(index, step, call.as_ref());
        let repeat = resolve_repeat(&self.taken, step.flow.repeat.as_ref());
        let repeat = self.problems.ok_or_report(&key("repeat"), repeat);
        let on_failure = resolve_on_failure(&step.flow);
        let on_failure = self.problems.ok_or_report(&key("on_failure"), on_failure);
        let branch = self.forks.assign_branch(index, &step.flow);
        let branch = self.problems.ok_or_report(&key("branch"), branch);
        let in_loop = self.loops.assign_loop(index, &step.flow);
        let in_loop = self.problems.ok_or_report(&key("loop"), in_loop);
        self.loops.set_bound_names(index, self.taken.len());
        let control = Table::try_from(&step.flow).unwrap_or_default();
        self.report_unfilled_fields(index, &control, &["name"]);
        let StepRequest {
            module,
            call,
            used_names: needs,
        } = call?;
        Some(JourneyStep {
            module,
            call,
            link: self.links[index],
            takes: takes?,
            used_names: needs,
            pause: step.flow.pause.unwrap_or(PauseSpec::Fixed(Duration::ZERO)),
            repeat: repeat?,
            condition: match condition {
                None => None,
                Some(parsed) => Some(parsed?),
            },
            branch: branch?,
            in_loop: in_loop?,
            on_failure: on_failure?,
        })
    }

    /// Returns the protocol of a step and the keys that it takes over from the section.
    fn resolve_step_module(
        &mut self,
        index: usize,
        step: &StepSpec,
    ) -> Option<(&'static StepModule, Table)> {
        let Some(url) = step.flow.target.as_deref() else {
            return Some((self.module, self.defaults.clone()));
        };
        let found = step_module::find_module_for_url(url);
        if found.is_none() {
            let schemes = step_module::registered_modules()
                .iter()
                .map(|module| module.schemes.plain);
            let schemes: Vec<String> = schemes.map(|scheme| format!("{scheme}://")).collect();
            let url = redaction::replace_secrets_with_variables(url);
            let problem = format!(
                "`{url}`: calls of this kind can't be steps: use {}",
                schemes.join(", ")
            );
            self.problems
                .add(format!("{STEPS_KEY}.{index}.target"), problem);
        }
        let module = found?;
        // The section's keys describe the plan's own target, so they are not defaults for another server.
        Some((module, Table::new()))
    }

    /// Resolves the call of a step.
    fn resolve_call(&mut self, index: usize, step: &StepSpec) -> Option<StepRequest> {
        let (module, defaults) = self.resolve_step_module(index, step)?;
        let section = module.schemes.section;
        let merged = merge_call_keys(module, defaults, &step.call);
        let mut own = Problems::default();
        let is_own = step.flow.target.is_some();
        let given = |key: &&&str| step.call.contains_key(**key);
        let shared = module.shared_keys.iter().filter(|_| !is_own);
        for key in shared.chain(&[STEPS_KEY]).filter(given) {
            own.add(
                format!("call.{section}.{key}"),
                format!("the same for all steps: write it in [call.{section}]"),
            );
        }
        if is_own {
            let link = self.links[index];
            self.shared_keys.check(&mut own, module, link, &merged);
        }
        for key in module.unsupported_keys.iter().filter(given) {
            own.add(format!("call.{section}.{key}"), UNSUPPORTED_KEY_MESSAGE);
        }
        let known = (module.keys)();
        for key in step
            .call
            .keys()
            .filter(|key| !known.contains(&key.as_str()))
        {
            let hint = match suggest(key, known) {
                Some(near) => format!("did you mean {near}?"),
                None => format!("the keys are {}", known.join(", ")),
            };
            let problem = format!("not a key of a step over {}; {hint}", module.title);
            own.add(format!("call.{section}.{key}"), problem);
        }
        let scope = StepScope {
            rows: self.rows,
            metadata: MetadataScope {
                rows: PlanRows::from_spec(self.rows, self.spec),
                taken: &self.taken,
            },
            variation: &self.variation,
        };
        let spec = Spec {
            target: step
                .flow
                .target
                .clone()
                .or_else(|| self.spec.target.clone()),
            ..self.spec.clone()
        };
        let resolved = if own.0.is_empty() {
            (module.step_call)(&merged, &mut own, &spec, &scope, self.surroundings)
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
        self.report_unfilled_fields(index, &merged, module.template_keys);
        let (call, uses_rows) = resolved?;
        self.uses_rows |= uses_rows;
        let needs: HashSet<usize> = (module.used_name_indices)(&call).into_iter().collect();
        let mut needs: Vec<usize> = needs.into_iter().collect();
        needs.sort_unstable();
        Some(StepRequest {
            module,
            call,
            used_names: needs,
        })
    }

    /// Reports fields in the texts of a step's table that are not filled in.
    fn report_unfilled_fields(&mut self, index: usize, table: &Table, template_keys: &[&str]) {
        let check = LiteralTextCheck {
            names: &self.bound_names,
            template_keys,
        };
        check.report_fields(self.problems, &format!("{STEPS_KEY}.{index}"), table);
    }

    fn resolve_captures(
        &mut self,
        index: usize,
        step: &StepSpec,
        request: Option<&StepRequest>,
    ) -> Option<Vec<CaptureRule>> {
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
            let Some((source, is_optional)) = self
                .problems
                .ok_or_report(&key, CaptureSource::parse(typed))
            else {
                is_good = false;
                continue;
            };
            let mut take = CaptureRule {
                name: self.bind_name(name),
                source,
                is_optional,
                is_in_header: false,
                encoding: typed.encoding(),
            };
            let fitted = request.map_or(Ok(()), |request| {
                (request.module.adapt_take_rule)(&request.call, &mut take)
            });
            is_good &= self.problems.ok_or_report(&key, fitted).is_some();
            takes.push(take);
        }
        is_good.then_some(takes)
    }

    /// Binds the names that later steps of the loop of the first of `steps` bind. Only a step with a condition may use
    /// them, since no answer has had them in the first iteration.
    fn bind_later_names(&mut self, steps: &[StepSpec]) {
        let has_condition = |step: &StepSpec| step.flow.condition.is_some();
        if steps.first().is_some_and(has_condition) {
            let takes = later_steps_of_loop(steps)
                .iter()
                .map(|step| &step.flow.take);
            for name in takes.flat_map(|take| take.keys()) {
                self.bind_name(name);
            }
        }
    }

    /// Returns the position of `name` in `taken`, adding it if necessary.
    fn bind_name(&mut self, name: &str) -> usize {
        find_name(&self.taken, name).unwrap_or_else(|_| {
            self.taken.push(name.to_owned());
            self.taken.len() - 1
        })
    }
}

/// The resolved call of a step.
struct StepRequest {
    module: &'static StepModule,
    call: CallPlan,
    /// The positions of the names whose values the call uses.
    used_names: Vec<usize>,
}
