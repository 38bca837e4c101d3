//! The parts of OTLP 1 messages (opentelemetry-proto) that metrics and spans share. Each structure supports both
//! encodings, protobuf and its JSON mapping, in which 64-bit numbers are strings.

use prost::Message;
use serde::{Serialize, Serializer};

/// A request to export metrics or spans to a collector.
pub trait ExportRequest {
    /// Encodes the request in protobuf.
    fn to_protobuf(&self) -> Vec<u8>;

    /// Encodes the request in protobuf's JSON mapping, in the form that OTLP defines.
    fn to_json(&self) -> Vec<u8>;
}

impl<M: Message + Serialize> ExportRequest for M {
    fn to_protobuf(&self) -> Vec<u8> {
        self.encode_to_vec()
    }

    fn to_json(&self) -> Vec<u8> {
        // Writing to memory can't fail.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// A collector's response: `ExportMetricsServiceResponse` or `ExportTraceServiceResponse`, which have the same
/// structure.
#[derive(Clone, PartialEq, Message)]
struct ExportResponse {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

/// The part of a collector's response to a request that it accepted only partially.
#[derive(Clone, PartialEq, Message)]
pub struct PartialSuccess {
    /// The number of data points or spans that the collector rejected.
    #[prost(int64, tag = "1")]
    pub rejected: i64,
    /// The reason, or a warning.
    #[prost(string, tag = "2")]
    pub error_message: String,
}

impl PartialSuccess {
    /// Decodes a response in protobuf; returns `None` if everything was accepted.
    ///
    /// # Errors
    /// Returns the problem if the response is not valid protobuf.
    pub fn from_protobuf(answer: &[u8]) -> Result<Option<PartialSuccess>, String> {
        let response = ExportResponse::decode(answer).map_err(|e| e.to_string())?;
        Ok(response
            .partial_success
            .and_then(PartialSuccess::into_partial_success))
    }

    /// Decodes a response in JSON, like [`PartialSuccess::from_protobuf`].
    ///
    /// # Errors
    /// Returns the problem if the response is not a JSON object.
    pub fn from_json(answer: &[u8]) -> Result<Option<PartialSuccess>, String> {
        let answer: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(answer).map_err(|e| e.to_string())?;
        let answer = serde_json::Value::Object(answer);
        let partial = &answer["partialSuccess"];
        // A 64-bit number is a string in protobuf's JSON; some collectors write a number.
        let rejected = ["rejectedSpans", "rejectedDataPoints"].map(|key| &partial[key]);
        let rejected = rejected.into_iter().find_map(|number| {
            let text = number.as_str().and_then(|text| text.parse().ok());
            text.or_else(|| number.as_i64())
        });
        let error_message = partial["errorMessage"].as_str().unwrap_or_default();
        let partial = PartialSuccess {
            rejected: rejected.unwrap_or(0),
            error_message: error_message.to_owned(),
        };
        Ok(partial.into_partial_success())
    }

    /// Returns `None` if nothing was rejected and there is no message.
    fn into_partial_success(self) -> Option<PartialSuccess> {
        let is_refusal = self.rejected > 0 || !self.error_message.is_empty();
        is_refusal.then_some(self)
    }
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub(crate) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(crate) attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub(crate) struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

/// A value that is either a text or an integer.
#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct AnyValue {
    #[prost(string, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    string_value: Option<String>,
    #[prost(int64, optional, tag = "3")]
    #[serde(
        serialize_with = "optional_text",
        skip_serializing_if = "Option::is_none"
    )]
    int_value: Option<i64>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub(crate) struct InstrumentationScope {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
}

impl InstrumentationScope {
    pub(crate) fn new(tool_version: &str) -> InstrumentationScope {
        InstrumentationScope {
            name: "plimsoll".to_owned(),
            version: tool_version.to_owned(),
        }
    }
}

pub(crate) fn attribute(key: &str, text: &str) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue {
            string_value: Some(text.to_owned()),
            int_value: None,
        }),
    }
}

/// Returns an attribute with a number. A number beyond the range of `i64` becomes the highest in that range.
pub(crate) fn number_attribute(key: &str, number: u64) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue {
            string_value: None,
            int_value: Some(i64::try_from(number).unwrap_or(i64::MAX)),
        }),
    }
}

pub(crate) fn text<S: Serializer>(n: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(n)
}

pub(crate) fn optional_text<S: Serializer>(n: &Option<i64>, to: S) -> Result<S::Ok, S::Error> {
    match n {
        Some(n) => to.collect_str(n),
        None => to.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_success_is_read_in_both_encodings() {
        let expected = PartialSuccess {
            rejected: 3,
            error_message: "too old".to_owned(),
        };
        let response = ExportResponse {
            partial_success: Some(expected.clone()),
        };
        let read = PartialSuccess::from_protobuf(&response.encode_to_vec());
        assert_eq!(read, Ok(Some(expected.clone())));
        for (key, number) in [("rejectedSpans", "\"3\""), ("rejectedDataPoints", "3")] {
            let answer =
                format!(r#"{{"partialSuccess":{{"{key}":{number},"errorMessage":"too old"}}}}"#);
            let read = PartialSuccess::from_json(answer.as_bytes());
            assert_eq!(read, Ok(Some(expected.clone())), "{answer}");
        }
        for nothing in ["{}", r#"{"partialSuccess":{}}"#] {
            assert_eq!(PartialSuccess::from_json(nothing.as_bytes()), Ok(None));
        }
        for page in ["<html>", "[]", "OK"] {
            assert!(
                PartialSuccess::from_json(page.as_bytes()).is_err(),
                "{page}"
            );
        }
        assert!(PartialSuccess::from_protobuf(b"<html>").is_err());
    }
}
