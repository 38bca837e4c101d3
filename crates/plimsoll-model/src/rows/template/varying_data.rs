//! Data that differs from call to call: messages and metadata.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use super::{FieldSource, RenderContext, Template, TraceIds, VariationSettings};

/// A message with fields, which is encoded separately for every call.
pub trait MessageRenderer: fmt::Debug + Send + Sync {
    /// Appends the encoded message for `moment`.
    fn render(&self, moment: &RenderContext<'_>, out: &mut Vec<u8>);

    /// Returns the maximum number of bytes that are appended.
    fn max_bytes(&self) -> usize;

    /// Returns the indices (in [`super::FieldScope::captured`]) of the captured values that the message contains. An index
    /// may be repeated.
    fn captured_indices(&self) -> Vec<u16> {
        Vec::new()
    }

    /// Checks that the values captured from answers are valid for the fields of the message.
    ///
    /// # Errors
    /// Returns which value is invalid, and why.
    fn check_captured_values(&self, _moment: &RenderContext<'_>) -> Result<(), String> {
        Ok(())
    }
}

/// The messages of a call, which differ from call to call.
#[derive(Clone, Debug)]
pub struct VaryingMessages {
    /// The settings by which values are chosen.
    pub variation: VariationSettings,
    /// The call's message, or the messages of a stream in order. At least one.
    pub messages: Vec<Arc<dyn MessageRenderer>>,
}

/// Metadata entries whose values differ from call to call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VaryingMetadata {
    /// The settings by which values are chosen.
    pub variation: VariationSettings,
    /// The entries, at least one.
    pub fields: Vec<MetadataField>,
}

/// A metadata entry whose value is computed for each call. The value is always printable ASCII without blanks at its
/// ends, or base64 if the name ends in `-bin`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataField {
    /// The name, in lower case.
    pub name: String,
    /// The value as the plan contains it.
    pub typed: String,
    /// The parsed value.
    pub template: Template,
}

impl VaryingMetadata {
    /// Returns the trace ids, if the fields contain them ([`trace_ids`]).
    pub fn trace_ids(&self) -> Option<TraceIds> {
        trace_ids(&self.variation, &self.fields)
    }

    /// Returns the same metadata with other trace ids; `None`: it contains no trace ids.
    pub fn with_trace_ids(&self, ids: TraceIds) -> Option<VaryingMetadata> {
        self.trace_ids()?;
        Some(VaryingMetadata {
            variation: self.variation.clone().with_trace_ids(ids),
            fields: self.fields.clone(),
        })
    }
}

/// Returns the trace ids of `variation`, if `fields` contain them.
pub fn trace_ids<'a>(
    variation: &VariationSettings,
    fields: impl IntoIterator<Item = &'a MetadataField>,
) -> Option<TraceIds> {
    let mut fields = fields.into_iter();
    let has_them = fields.any(|field| field.sole_source() == Some(&FieldSource::Traceparent));
    has_them.then(|| variation.trace_ids())
}

impl MetadataField {
    /// Returns the field `traceparent`, whose value differs for each call (W3C Trace Context §3.2).
    pub fn new_traceparent() -> MetadataField {
        MetadataField {
            name: MetadataField::TRACEPARENT.to_owned(),
            typed: String::new(),
            template: Template::from_source(FieldSource::Traceparent),
        }
    }

    /// The name of the `traceparent` field.
    pub const TRACEPARENT: &str = "traceparent";

    /// Returns the source of the whole value; `None`: it consists of several parts.
    fn sole_source(&self) -> Option<&FieldSource> {
        self.template.sole_field().map(|field| &field.source)
    }

    /// Returns whether the value is the sixteen bytes of a UUID.
    pub fn is_binary_uuid(&self) -> bool {
        self.name.ends_with("-bin") && self.sole_source() == Some(&FieldSource::Uuid)
    }

    /// Returns the index of the captured value in base64 that is the whole value of a name ending in `-bin`; `None`: the
    /// value is something else.
    pub fn binary_captured_index(&self) -> Option<u16> {
        let captured = self.template.sole_captured_index();
        captured.filter(|_| self.name.ends_with("-bin"))
    }

    /// Appends the value for `moment`.
    #[inline]
    pub fn write(&self, moment: &RenderContext<'_>, out: &mut Vec<u8>) {
        match self.template.sole_field() {
            Some(field) if self.is_binary_uuid() => {
                let mut base64 = [0; 24];
                // gRPC over HTTP/2, "Custom-Metadata": padding should not be sent.
                let length = STANDARD_NO_PAD.encode_slice(field.uuid(moment), &mut base64);
                out.extend_from_slice(&base64[..length.unwrap_or(0)]);
            }
            _ => {
                let start = out.len();
                self.template.write(moment, out);
                if self.binary_captured_index().is_some() {
                    let padding = out[start..]
                        .iter()
                        .rev()
                        .take_while(|byte| **byte == b'=')
                        .count();
                    out.truncate(out.len() - padding);
                }
            }
        }
    }

    /// Returns the maximum length of the value, in bytes.
    pub fn max_bytes(&self) -> usize {
        if self.is_binary_uuid() {
            22
        } else {
            self.template.length_bounds().1
        }
    }
}

impl PartialEq for VaryingMessages {
    /// Compares messages by identity, because implementations of [`MessageRenderer`] can't be compared.
    fn eq(&self, other: &VaryingMessages) -> bool {
        let same =
            |(a, b): (&Arc<dyn MessageRenderer>, &Arc<dyn MessageRenderer>)| Arc::ptr_eq(a, b);
        self.variation == other.variation
            && self.messages.len() == other.messages.len()
            && self.messages.iter().zip(&other.messages).all(same)
    }
}

impl Eq for VaryingMessages {}
