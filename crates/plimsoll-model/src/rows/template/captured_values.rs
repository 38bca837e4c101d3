//! Fields whose values a journey captured from earlier answers (the key `take` of a step).

use super::{FieldSource, RenderContext, Rows, TemplatePart};

/// A field whose value was captured from an earlier answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapturedField {
    /// The index of the name in [`FieldScope::captured`], and of the value in [`RenderContext::captured`].
    pub index: u16,
    /// Whether the value is percent-encoded for a URL (RFC 3986, 2.1).
    pub is_in_url: bool,
}

/// The names, besides the built-in ones, to which fields of a template may refer.
#[derive(Clone, Copy, Debug, Default)]
pub struct FieldScope<'a> {
    /// The plan's rows, for `{{row.NAME}}`.
    pub rows: Option<&'a Rows>,
    /// The names of values that earlier steps of a journey capture from answers.
    pub captured: &'a [String],
}

impl<'a> From<Option<&'a Rows>> for FieldScope<'a> {
    fn from(rows: Option<&'a Rows>) -> FieldScope<'a> {
        FieldScope {
            rows,
            captured: &[],
        }
    }
}

/// Maximum length of a value that is captured from an answer, in bytes.
pub const MAX_CAPTURED_VALUE_BYTES: usize = 64 << 10;

impl CapturedField {
    /// Appends the value. Appends nothing if the value has not been captured; a journey does not send a request whose
    /// values are missing.
    pub(super) fn write(self, moment: &RenderContext<'_>, out: &mut Vec<u8>) {
        let value = moment.captured.get(usize::from(self.index));
        let value = value.and_then(Option::as_deref).unwrap_or_default();
        if self.is_in_url {
            percent_encode(value, out);
        } else {
            out.extend_from_slice(value);
        }
    }
}

/// Marks the captured values in `parts` as percent-encoded.
pub(super) fn mark_percent_encoded<'a>(parts: impl Iterator<Item = &'a mut TemplatePart>) {
    for part in parts {
        if let TemplatePart::Field(field) = part
            && let FieldSource::Captured(taken) = &mut field.source
        {
            taken.is_in_url = true;
        }
    }
}

/// Appends `value` with all bytes percent-encoded except for `/` and the unreserved ones (RFC 3986, 2.3), so that it
/// can be part of a path or the value of a query parameter.
fn percent_encode(value: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in value {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(byte) {
            out.push(*byte);
        } else {
            let (high, low) = (usize::from(byte >> 4), usize::from(byte & 0xf));
            out.extend_from_slice(&[b'%', DIGITS[high], DIGITS[low]]);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::rows::template::{FieldScope, RowOrder, Template, VariationSettings};

    #[test]
    fn captured_values_are_encoded_in_urls() {
        let names = ["token".to_owned(), "next page".to_owned()];
        let scope = FieldScope {
            rows: None,
            captured: &names,
        };
        let parse = |text: &str| Template::parse(text, &mut 0, scope);
        let values = [Some(b"a b/\xc3\xa9&".to_vec().into_boxed_slice()), None];
        let variation = VariationSettings::new(1, 1, 0, RowOrder::RoundRobin);
        let moment = variation
            .render_context(0, 0, 0)
            .with_captured_values(&values);
        let rendered = |template: &Template| {
            let mut out = Vec::new();
            template.write(&moment, &mut out);
            out
        };
        let header = parse("Bearer {{token}}").unwrap();
        assert_eq!(rendered(&header), b"Bearer a b/\xc3\xa9&");
        let path = parse("/x?q={{ token }}").unwrap().with_url_encoding();
        assert_eq!(rendered(&path), b"/x?q=a%20b/%C3%A9%26");
        let location = parse("{{token}}?{{token}}").unwrap().with_url_encoding();
        assert_eq!(location.leading_captured_index(), Some(0));
        assert_eq!(
            rendered(&location),
            b"a b/\xc3\xa9&?a%20b/%C3%A9%26",
            "a path is not encoded again"
        );
        let form = parse("{{token}}&a={{token}}").unwrap().with_form_encoding();
        assert_eq!(
            rendered(&form),
            b"a%20b/%C3%A9%26&a=a%20b/%C3%A9%26",
            "a form's first value is encoded, too"
        );
        let two = parse("{{next page}}{{token}}{{seq}}").unwrap();
        assert_eq!(two.captured_indices().collect::<Vec<_>>(), [1, 0]);
        let unknown = parse("{{tokn}}").unwrap_err();
        assert!(unknown.contains("did you mean token?"), "{unknown}");
    }
}
