//! What a call sends where it varies: messages, and metadata.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use super::{Moment, Source, Template, TraceIds, Variation};

/// Data of one message, encoded anew for every call.
pub trait Render: fmt::Debug + Send + Sync {
    /// Appends the encoded message as `moment` has it.
    fn render(&self, moment: &Moment<'_>, out: &mut Vec<u8>);

    /// Bytes that it appends, at most.
    fn most(&self) -> usize;
}

/// What a call sends where it varies.
#[derive(Clone, Debug)]
pub struct Varying {
    /// What values are chosen by.
    pub variation: Variation,
    /// One message; or several for a stream, sent in turn. At least one.
    pub messages: Vec<Arc<dyn Render>>,
}

/// Metadata of a call that vary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VaryingMetadata {
    /// What values are chosen by.
    pub variation: Variation,
    /// The entries that vary, at least one.
    pub fields: Vec<MetadataField>,
}

/// A metadata entry whose value is made for each call. Whatever the call, the value is printable
/// ASCII without blanks at its ends, or base64 where the name ends in `-bin`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataField {
    /// The name in lower case.
    pub name: String,
    /// The value as it was given.
    pub typed: String,
    /// The value.
    pub template: Template,
}

impl VaryingMetadata {
    /// Returns the [`trace_ids`] that its fields carry.
    pub fn trace_ids(&self) -> Option<TraceIds> {
        trace_ids(&self.variation, &self.fields)
    }

    /// The same with other trace ids; `None`: they have none.
    pub fn traced(&self, ids: TraceIds) -> Option<VaryingMetadata> {
        self.trace_ids()?;
        Some(VaryingMetadata {
            variation: self.variation.clone().traced(ids),
            fields: self.fields.clone(),
        })
    }
}

/// The trace ids of calls that vary by `variation`, where these `fields` carry them.
pub fn trace_ids<'a>(
    variation: &Variation,
    fields: impl IntoIterator<Item = &'a MetadataField>,
) -> Option<TraceIds> {
    let mut fields = fields.into_iter();
    let has_them = fields.any(|field| field.source() == Some(&Source::Traceparent));
    has_them.then(|| variation.traces())
}

impl MetadataField {
    /// Each call's own `traceparent` (W3C Trace Context, 3.2).
    pub fn traceparent() -> MetadataField {
        MetadataField {
            name: MetadataField::TRACEPARENT.to_owned(),
            typed: String::new(),
            template: Template::only(Source::Traceparent),
        }
    }

    /// Its name.
    pub const TRACEPARENT: &str = "traceparent";

    /// What the whole value stands for; `None`: its parts stand for several things.
    fn source(&self) -> Option<&Source> {
        self.template.alone().map(|field| &field.source)
    }

    /// The value is a UUID's sixteen bytes.
    pub fn is_binary_uuid(&self) -> bool {
        self.name.ends_with("-bin") && self.source() == Some(&Source::Uuid)
    }

    /// Appends the value as `moment` has it.
    #[inline]
    pub fn write(&self, moment: &Moment<'_>, out: &mut Vec<u8>) {
        match self.template.alone() {
            Some(field) if self.is_binary_uuid() => {
                let mut base64 = [0; 24];
                // gRPC over HTTP/2, "Custom-Metadata": padding should not be sent.
                let length = STANDARD_NO_PAD.encode_slice(field.uuid(moment), &mut base64);
                out.extend_from_slice(&base64[..length.unwrap_or(0)]);
            }
            _ => self.template.write(moment, out),
        }
    }

    /// Bytes of the value, at most.
    pub fn most(&self) -> usize {
        if self.is_binary_uuid() {
            22
        } else {
            self.template.bounds().1
        }
    }
}

impl PartialEq for Varying {
    /// The same messages, not equal ones: what renders them can't be looked into.
    fn eq(&self, other: &Varying) -> bool {
        let same = |(a, b): (&Arc<dyn Render>, &Arc<dyn Render>)| Arc::ptr_eq(a, b);
        self.variation == other.variation
            && self.messages.len() == other.messages.len()
            && self.messages.iter().zip(&other.messages).all(same)
    }
}

impl Eq for Varying {}
