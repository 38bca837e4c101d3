//! The interface that every protocol's call implements, and its type-erased form in a plan.

use std::any::Any;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::{Metric, Target, TlsPlan, TokenCounter};
use crate::rows::template::{
    CommandOutput, FieldSource, MetadataField, TraceIds, VariationSettings,
};

/// One kind of call. The implementation contains everything that is specific to its protocol.
pub trait Call: DynEq + fmt::Debug + Send + Sync {
    /// Returns the protocol's name and the name of the call: a method or a path.
    fn protocol_and_call_name(&self) -> (&'static str, Cow<'_, str>);

    /// Returns the name of a run where the plan gives none.
    fn short_name(&self) -> Cow<'_, str> {
        match self.protocol_and_call_name().1 {
            Cow::Borrowed(name) => last_segment(name).into(),
            Cow::Owned(name) => last_segment(&name).to_owned().into(),
        }
    }

    /// Returns a fixed name for runs whose plan gives none; `None`: the short name and the kind of load are used.
    fn fixed_run_name(&self) -> Option<&'static str> {
        None
    }

    /// Returns the protocol's version that is spoken over `tls`, where there are several.
    fn protocol_version(&self, tls: Option<&TlsPlan>) -> Option<&'static str> {
        let _ = tls;
        None
    }

    /// Returns the maximum number of calls that a connection over `tls` carries at once; `None`: as many as the peer
    /// allows.
    fn max_concurrent_calls(&self, tls: Option<&TlsPlan>) -> Option<u32> {
        let _ = tls;
        None
    }

    /// Returns the maximum number of calls of a journey; the actual number depends on the answers. `None`: users make
    /// no journeys.
    fn max_calls_per_journey(&self) -> Option<u32> {
        None
    }

    /// Returns how many calls each arriving user makes, one after the other over the user's own connection; `None`:
    /// calls arrive independently of each other.
    fn calls_per_user(&self) -> Option<u32> {
        None
    }

    /// Returns the settings that make calls differ from each other; `None`: all calls are the same.
    fn variation_settings(&self) -> Option<&VariationSettings> {
        None
    }

    /// Returns the header fields or metadata: those that are the same for every call, and those that vary.
    fn header_fields(&self) -> (&[(String, String)], &[MetadataField]) {
        (&[], &[])
    }

    /// Returns the secrets in the query strings of requests, each with the name of the environment variable that
    /// replaces it in a saved plan.
    fn query_string_secrets(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Returns the secrets in other settings than header fields, each with the name of the environment variable that
    /// replaces it in a saved plan.
    fn setting_secrets(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Returns the same call with these trace ids in its requests; `None`: the protocol's requests carry none.
    fn with_trace_ids(&self, ids: TraceIds) -> Option<Self>
    where
        Self: Sized,
    {
        let _ = ids;
        None
    }

    /// Returns why `metric` can't be measured for these calls; `None`: it can.
    fn missing_metric_reason(&self, metric: Metric) -> Option<&'static str> {
        metric
            .is_about_tokens()
            .then_some("calls of this protocol bring no tokens: leave it out")
    }

    /// Returns the tokenizer that counts the tokens of answers; `None`: only the service's own counts are known.
    fn token_counter(&self) -> Option<&TokenCounter> {
        None
    }

    /// Returns the targets besides the plan's own to which some calls go, each with whether it is reached over TLS.
    fn other_targets(&self) -> Vec<(&Target, bool)> {
        Vec::new()
    }

    /// Returns [`Call::other_targets`] mutably, so that their addresses and proxies can be filled in.
    fn other_targets_mut(&mut self) -> Vec<&mut Target> {
        Vec::new()
    }
}

/// Returns `GetScore` for `score.ScoreService/GetScore`.
fn last_segment(name: &str) -> &str {
    let mut parts = name.rsplit('/');
    parts.find(|part| !part.is_empty()).unwrap_or(name)
}

/// Equality of trait objects, because `dyn Trait` can't require `PartialEq`.
pub trait DynEq: Any {
    /// Returns whether `other` has the same type and is equal.
    fn is_same(&self, other: &dyn Any) -> bool;
}

impl<T: Any + PartialEq> DynEq for T {
    fn is_same(&self, other: &dyn Any) -> bool {
        other.downcast_ref() == Some(self)
    }
}

/// The call of a plan: a [`Call`] of any protocol.
#[derive(Clone, Debug)]
pub struct CallPlan {
    call: Arc<dyn Call>,
    checksums: BTreeMap<String, String>,
    is_target_secured: bool,
    /// The secrets in bodies, each with its variable.
    body_secrets: Vec<(String, String)>,
}

impl CallPlan {
    /// Erases the protocol's type.
    pub fn new(call: impl Call) -> CallPlan {
        CallPlan {
            call: Arc::new(call),
            checksums: BTreeMap::new(),
            is_target_secured: false,
            body_secrets: Vec::new(),
        }
    }

    /// Sets the checksums of the files that the calls are made of, by path.
    #[must_use]
    pub(crate) fn with_checksums(self, checksums: BTreeMap<String, String>) -> CallPlan {
        CallPlan { checksums, ..self }
    }

    /// Sets whether connections to the plan's own target use TLS.
    #[must_use]
    pub(crate) fn with_target_security(self, is_target_secured: bool) -> CallPlan {
        CallPlan {
            is_target_secured,
            ..self
        }
    }

    /// Sets the secrets in bodies, each with the environment variable that replaces it in a saved plan.
    #[must_use]
    pub(crate) fn with_body_secrets(self, body_secrets: Vec<(String, String)>) -> CallPlan {
        CallPlan {
            body_secrets,
            ..self
        }
    }

    /// Returns the secrets in bodies, each with the environment variable that replaces it in a saved plan.
    pub fn body_secrets(&self) -> &[(String, String)] {
        &self.body_secrets
    }

    /// Returns whether connections to the plan's own target use TLS.
    pub fn is_target_secured(&self) -> bool {
        self.is_target_secured
    }

    /// Returns the checksums of the files that the calls are made of, by path.
    pub fn checksums(&self) -> &BTreeMap<String, String> {
        &self.checksums
    }

    /// Returns the values that a command refreshes during the run.
    pub fn command_outputs(&self) -> Vec<Arc<CommandOutput>> {
        let (_, varying) = self.header_fields();
        let sources = varying.iter();
        let sources = sources.filter_map(|field| Some(&field.template.sole_field()?.source));
        let live = sources.filter_map(|source| match source {
            FieldSource::CommandOutput(value) => Some(Arc::clone(value)),
            _ => None,
        });
        live.collect()
    }

    /// Returns the other targets mutably; works only during resolution, before the call is shared.
    pub(crate) fn other_targets_mut(&mut self) -> Vec<&mut Target> {
        let call = Arc::get_mut(&mut self.call);
        call.map_or_else(Vec::new, |call| call.other_targets_mut())
    }

    /// Returns the call as type `C`, if it is of that protocol.
    pub fn downcast_ref<C: Call>(&self) -> Option<&C> {
        let any: &dyn Any = &*self.call;
        any.downcast_ref()
    }
}

impl Deref for CallPlan {
    type Target = dyn Call;

    fn deref(&self) -> &dyn Call {
        &*self.call
    }
}

impl PartialEq for CallPlan {
    fn eq(&self, other: &CallPlan) -> bool {
        self.call.is_same(&*other.call) && self.checksums == other.checksums
    }
}
