//! A value in a text of a request: its place, its name, and the syntax around it.

use std::ops::Range;

/// A value in a text of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestValue {
    /// The place in the text.
    pub(super) span: Range<usize>,
    /// The value without the encoding that the place needs.
    pub(super) value: String,
    /// The name it is sent under; of a path segment, the segment before it.
    pub(super) name: String,
    pub(super) place: ValueSyntax,
}

/// The syntax of the text around a value, which determines how it is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueSyntax {
    Segment,
    /// A segment that follows one such as `reset`: it is a token, if it is random.
    TokenSegment,
    /// A parameter of a segment, such as `;jsessionid=…`.
    SegmentParameter,
    Query,
    Form,
    JsonString,
    JsonNumber,
    /// Text within XML or another value, for whose syntax nothing encodes what a field is filled with.
    Embedded,
    /// Text without a structure that is known, such as a header field.
    Text,
}
