//! A value in a text of a request, with its position, its name, and the syntax around it.

use std::ops::Range;

/// A value in a text of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestValue {
    /// The position in the text.
    pub(super) span: Range<usize>,
    /// The decoded value.
    pub(super) value: String,
    /// The name under which the value is sent; for a path segment, the segment before it.
    pub(super) name: String,
    pub(super) place: ValueSyntax,
}

/// The syntax of the text around a value, which determines how it is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueSyntax {
    Segment,
    /// A segment after one such as `reset`, which is a token if it looks random.
    TokenSegment,
    /// A parameter of a segment, such as `;jsessionid=…`.
    SegmentParameter,
    Query,
    Form,
    JsonString,
    JsonNumber,
    /// Text inside XML or another value; the values of fields are not encoded for its syntax.
    Embedded,
    /// Text without a known structure, such as a header field.
    Text,
}
