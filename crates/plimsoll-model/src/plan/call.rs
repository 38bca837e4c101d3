//! What one call is, of whichever protocol.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::{Target, TlsPlan, TokenCounter};
use crate::template::{LiveValue, MetadataField, Source, TraceIds, Variation};

/// One kind of call, of which only its protocol knows more than this.
pub trait Call: Same + fmt::Debug + Send + Sync {
    /// The protocol's name, and of what is called the part that a person looks for.
    fn names(&self) -> (&'static str, Cow<'_, str>);

    /// What runs of it are named after, where the plan gives no name.
    fn short_name(&self) -> Cow<'_, str> {
        match self.names().1 {
            Cow::Borrowed(name) => last_part(name).into(),
            Cow::Owned(name) => last_part(&name).to_owned().into(),
        }
    }

    /// The name of a run of it, where the plan gives none; `None`: its short name, and the load's kind.
    fn run_name(&self) -> Option<&'static str> {
        None
    }

    /// The protocol's version that is spoken over `tls`, where it has several.
    fn version(&self, tls: Option<&TlsPlan>) -> Option<&'static str> {
        let _ = tls;
        None
    }

    /// Calls that a connection over `tls` carries at once at most; `None`: several, as the peer allows.
    fn calls_at_once(&self, tls: Option<&TlsPlan>) -> Option<u32> {
        let _ = tls;
        None
    }

    /// Users arrive and not calls, each with so many calls in a row over a connection of its own; `None`:
    /// calls are due by themselves.
    fn calls_in_a_row(&self) -> Option<u32> {
        None
    }

    /// What calls vary by; `None`: they are all the same.
    fn variation(&self) -> Option<&Variation> {
        None
    }

    /// Header fields or metadata: those that are the same for every call, and those that vary.
    fn fields(&self) -> (&[(String, String)], &[MetadataField]) {
        (&[], &[])
    }

    /// Path and query of its requests, whose secrets are to be kept out of the run directory.
    fn path(&self) -> Option<&str> {
        None
    }

    /// The same call with these ids in its requests; `None`: they carry none.
    fn traced(&self, ids: TraceIds) -> Option<Self>
    where
        Self: Sized,
    {
        let _ = ids;
        None
    }

    /// What counts the tokens of answers besides the service; `None`: nothing does.
    fn token_counter(&self) -> Option<&TokenCounter> {
        None
    }

    /// Where its calls go besides the plan's target, and whether over TLS.
    fn second_target(&self) -> Option<(&Target, bool)> {
        None
    }

    /// The same, to give it addresses and a proxy.
    fn second_target_mut(&mut self) -> Option<&mut Target> {
        None
    }
}

/// `GetScore` of `score.ScoreService/GetScore`
fn last_part(name: &str) -> &str {
    let mut parts = name.rsplit('/');
    parts.find(|part| !part.is_empty()).unwrap_or(name)
}

/// Comparing without knowing the type.
pub trait Same: Any {
    /// `other` is of the same type, and equal.
    fn is_same(&self, other: &dyn Any) -> bool;
}

impl<T: Any + PartialEq> Same for T {
    fn is_same(&self, other: &dyn Any) -> bool {
        other.downcast_ref() == Some(self)
    }
}

/// What one call is: a [`Call`] of whichever protocol.
#[derive(Clone, Debug)]
pub struct CallPlan(Arc<dyn Call>);

impl CallPlan {
    /// Forgets the protocol's type.
    pub fn new(call: impl Call) -> CallPlan {
        CallPlan(Arc::new(call))
    }

    /// Values that a command makes anew while the run goes on.
    pub fn live_values(&self) -> Vec<Arc<LiveValue>> {
        let (_, varying) = self.fields();
        let sources = varying.iter();
        let sources = sources.filter_map(|field| Some(&field.template.alone()?.source));
        let live = sources.filter_map(|source| match source {
            Source::Live(value) => Some(Arc::clone(value)),
            _ => None,
        });
        live.collect()
    }

    /// While it is being resolved, and nobody shares it yet.
    pub(crate) fn second_target_mut(&mut self) -> Option<&mut Target> {
        Arc::get_mut(&mut self.0)?.second_target_mut()
    }

    /// The call, if it is one of this protocol.
    pub fn of_type<C: Call>(&self) -> Option<&C> {
        let any: &dyn Any = &*self.0;
        any.downcast_ref()
    }
}

impl Deref for CallPlan {
    type Target = dyn Call;

    fn deref(&self) -> &dyn Call {
        &*self.0
    }
}

impl PartialEq for CallPlan {
    fn eq(&self, other: &CallPlan) -> bool {
        self.0.is_same(&*other.0)
    }
}
