//! The protocols whose calls can be steps of a journey, with their types erased.

use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;

use plimsoll_model::plan::CallPlan;
use plimsoll_model::rows::template::{FieldScope, Rows, TraceIds, VariationSettings};
use plimsoll_model::spec::{
    CallSection, CallSpec, MetadataScope, Problem, Problems, ResolveContext, Spec, UrlSchemes,
    scheme_alias, section_for_url, struct_keys,
};
use toml::Table;

use super::capture::CaptureRule;
use super::step_protocol::{StepCall, StepContext};
use crate::interface::prepare_error::PrepareError;

/// A section whose calls can be the steps of a journey.
pub(crate) trait StepSection: CallSection {
    /// The name of the protocol in messages.
    const TITLE: &'static str;
    /// The key of the table of header fields or metadata.
    const FIELDS_KEY: &'static str;
    /// Keys that describe the content of a call. A step that has one of these keys inherits none of them from the
    /// section.
    const CONTENT_KEYS: &'static [&'static str];
    /// Keys whose values are the same for all steps, so only the section may have them.
    const SHARED_KEYS: &'static [&'static str];
    /// Keys that neither the section nor a step of a journey may have.
    const UNSUPPORTED_KEYS: &'static [&'static str];
    /// Keys whose texts may contain fields, with dots; `.*` at the end stands for all keys of a table.
    const TEMPLATE_KEYS: &'static [&'static str];

    /// Reports values of the section that a journey does not support.
    fn check_journey(&self, _problems: &mut Problems) {}

    /// Resolves the call of a step and returns whether it uses rows. `self` already combines the keys of the step and
    /// the section.
    fn resolve_step_call(
        &self,
        problems: &mut Problems,
        spec: &Spec,
        scope: &StepScope<'_>,
        surroundings: &dyn ResolveContext,
    ) -> Option<(Self::Call, bool)>;

    /// Returns the indices of the names whose values the call uses; an index may occur more than once.
    fn used_name_indices(call: &Self::Call) -> Vec<usize>;

    /// Adapts a rule for taking a value to the responses of the call.
    ///
    /// # Errors
    /// Returns an error if no response to the call can contain the value.
    fn adapt_capture_rule(_call: &Self::Call, _take: &mut CaptureRule) -> Result<(), String> {
        Ok(())
    }

    /// Converts the call of a step to a call of the protocol whose section contains the journey.
    fn to_section_call(call: &CallPlan) -> CallPlan {
        call.clone()
    }

    /// Prepares the request of a step.
    ///
    /// # Errors
    /// Returns an error if some part of the request can't be sent.
    fn prepare(
        call: &Self::Call,
        context: &StepContext<'_>,
    ) -> Result<Box<dyn StepCall>, PrepareError>;
}

/// The rows and names that a call's templates may refer to, and the source of varying values.
pub(crate) struct StepScope<'a> {
    pub(crate) rows: Option<&'a Rows>,
    pub(crate) metadata: MetadataScope<'a>,
    pub(crate) variation: &'a VariationSettings,
}

impl<'a> StepScope<'a> {
    /// Returns the names that the call's templates may refer to.
    pub(crate) fn fields(&self) -> FieldScope<'a> {
        FieldScope {
            rows: self.rows,
            captured: self.metadata.taken,
        }
    }
}

/// Resolves a step's call, and returns whether it uses rows.
type ResolveStepFn = fn(
    &Table,
    &mut Problems,
    &Spec,
    &StepScope<'_>,
    &dyn ResolveContext,
) -> Option<(CallPlan, bool)>;

/// Prepares the request of a step.
type PrepareStepFn = fn(&CallPlan, &StepContext<'_>) -> Result<Box<dyn StepCall>, PrepareError>;

/// A [`StepSection`] with its type erased.
pub(crate) struct StepModule {
    pub(crate) schemes: &'static UrlSchemes,
    /// [`StepSection::TITLE`].
    pub(crate) title: &'static str,
    pub(crate) keys: fn() -> &'static [&'static str],
    pub(crate) fields_key: &'static str,
    pub(crate) content_keys: &'static [&'static str],
    pub(crate) shared_keys: &'static [&'static str],
    pub(crate) unsupported_keys: &'static [&'static str],
    /// [`StepSection::TEMPLATE_KEYS`].
    pub(crate) template_keys: &'static [&'static str],
    /// Calls [`StepSection::check_journey`].
    pub(crate) check_journey: fn(&Table, &mut Problems),
    /// Calls [`StepSection::resolve_step_call`] for a section given as a table.
    pub(crate) step_call: ResolveStepFn,
    /// Calls [`CallSection::input_files`] for a section given as a table.
    pub(crate) files: fn(&Table) -> Vec<(&'static str, PathBuf)>,
    /// Calls [`StepSection::used_name_indices`].
    pub(crate) used_name_indices: fn(&CallPlan) -> Vec<usize>,
    /// Calls [`StepSection::adapt_capture_rule`].
    pub(crate) adapt_take_rule: fn(&CallPlan, &mut CaptureRule) -> Result<(), String>,
    /// Calls [`StepSection::to_section_call`].
    pub(crate) to_section_call: fn(&CallPlan) -> CallPlan,
    /// Calls [`StepSection::prepare`].
    pub(crate) prepare: PrepareStepFn,
    /// Returns the call with these trace ids in its request, or `None` if its requests can't carry any.
    pub(crate) with_trace_ids: fn(&CallPlan, TraceIds) -> Option<CallPlan>,
}

impl StepModule {
    /// Creates the module of the section `S`.
    pub(crate) const fn for_section<S: StepSection>() -> StepModule {
        StepModule {
            schemes: const { &S::SCHEMES },
            title: S::TITLE,
            keys: struct_keys::<S>,
            fields_key: S::FIELDS_KEY,
            content_keys: S::CONTENT_KEYS,
            shared_keys: S::SHARED_KEYS,
            unsupported_keys: S::UNSUPPORTED_KEYS,
            template_keys: S::TEMPLATE_KEYS,
            check_journey: |section, problems| {
                if let Ok(section) = S::deserialize(section.clone()) {
                    section.check_journey(problems);
                }
            },
            step_call: |section, problems, spec, scope, surroundings| {
                let section: S = match serde_path_to_error::deserialize(section.clone()) {
                    Ok(section) => section,
                    Err(e) => {
                        let key = format!("call.{}.{}", S::SCHEMES.section, e.path());
                        let problem = Problem::new(key, e.inner().message().to_owned());
                        problems.0.push(problem);
                        return None;
                    }
                };
                // Code that queries the step's server must see this step's call only, not the whole journey.
                let call = CallSpec::from_section(&section).ok()?;
                let spec = Spec {
                    call,
                    ..spec.clone()
                };
                let (call, uses_rows) =
                    section.resolve_step_call(problems, &spec, scope, surroundings)?;
                Some((CallPlan::new(call), uses_rows))
            },
            files: |section| {
                S::deserialize(section.clone()).map_or_else(|_| Vec::new(), |own| own.input_files())
            },
            used_name_indices: |call| {
                call.downcast_ref()
                    .map_or_else(Vec::new, S::used_name_indices)
            },
            adapt_take_rule: |call, take| {
                call.downcast_ref()
                    .map_or(Ok(()), |call| S::adapt_capture_rule(call, take))
            },
            to_section_call: S::to_section_call,
            prepare: |call, context| match call.downcast_ref() {
                Some(call) => S::prepare(call, context),
                None => Err(PrepareError::Call("a step of another protocol".to_owned())),
            },
            with_trace_ids: |call, ids| {
                use plimsoll_model::plan::Call as _;
                let call: &S::Call = call.downcast_ref()?;
                call.with_trace_ids(ids).map(CallPlan::new)
            },
        }
    }
}

impl fmt::Debug for StepModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StepModule")
            .field(&self.schemes.section)
            .finish()
    }
}

impl PartialEq for StepModule {
    fn eq(&self, other: &StepModule) -> bool {
        self.schemes.section == other.schemes.section
    }
}

static REGISTERED_MODULES: OnceLock<&'static [StepModule]> = OnceLock::new();

/// Registers the protocols whose calls can be steps. Takes effect once in a process; later calls are ignored.
pub(crate) fn register(modules: &'static [StepModule]) {
    REGISTERED_MODULES.get_or_init(|| modules);
}

/// Returns all registered modules.
pub(super) fn registered_modules() -> &'static [StepModule] {
    REGISTERED_MODULES.get().copied().unwrap_or_default()
}

/// Returns the module for calls to a URL, which is determined by its scheme.
pub(super) fn find_module_for_url(url: &str) -> Option<&'static StepModule> {
    let Some(alias) = scheme_alias(url) else {
        return find_module(section_for_url(url)?);
    };
    // Calls to a URL with an alias of a scheme, such as `ws`, may have a module of their own.
    let is_it = |name: &str| name.eq_ignore_ascii_case(alias);
    registered_modules()
        .iter()
        .find(|module| is_it(module.schemes.plain) || module.schemes.secured.is_some_and(is_it))
}

/// Returns the module of a section's calls.
pub(super) fn find_module(section: &str) -> Option<&'static StepModule> {
    registered_modules()
        .iter()
        .find(|module| module.schemes.section == section)
}
