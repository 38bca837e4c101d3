//! SOFARPC on Bolt: encodes a call of a Java interface as class, header map and content, and decodes the
//! response.

use std::sync::{Arc, LazyLock};

use super::header;
use super::hessian::{self, HessianClass, HessianDecoder, HessianEncoder, HessianValue};

/// The class of a request.
pub const REQUEST_CLASS: &str = "com.alipay.sofa.rpc.core.request.SofaRequest";
/// The class of a response.
pub const RESPONSE_CLASS: &str = "com.alipay.sofa.rpc.core.response.SofaResponse";

/// Returns the definition of a class. `fields` are in the order in which the Java library writes them.
pub(super) fn class_definition(name: &str, fields: &[&str]) -> Arc<HessianClass> {
    Arc::new(HessianClass {
        name: name.to_owned(),
        fields: fields.iter().map(|field| (*field).to_owned()).collect(),
    })
}

static REQUEST_DEFINITION: LazyLock<Arc<HessianClass>> = LazyLock::new(|| {
    class_definition(
        REQUEST_CLASS,
        &[
            "targetAppName",
            "methodName",
            "targetServiceUniqueName",
            "requestProps",
            "methodArgSigs",
        ],
    )
});

static RESPONSE_DEFINITION: LazyLock<Arc<HessianClass>> = LazyLock::new(|| {
    class_definition(
        RESPONSE_CLASS,
        &["isError", "errorMsg", "appResponse", "responseProps"],
    )
});

/// A call of a Java method.
#[derive(Clone, Debug, PartialEq)]
pub struct SofaCall {
    /// `interface:version`, or `interface:version:uniqueId`.
    pub service: String,
    /// The method's name.
    pub method: String,
    /// The Java type of each parameter.
    pub signature: Vec<String>,
    /// The arguments, one for each parameter.
    pub arguments: Vec<HessianValue>,
}

impl SofaCall {
    /// Returns the header map of the call.
    pub fn encode_header(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (key, value) in [
            (header::SERVICE_KEY, self.service.as_str()),
            (header::TARGET_SERVICE_KEY, &self.service),
            (header::METHOD_NAME_KEY, &self.method),
        ] {
            header::write(&mut out, Some(key.as_bytes()), Some(value.as_bytes()));
        }
        out
    }

    /// Encodes the content: a `SofaRequest`, followed by the arguments.
    pub fn encode_content(&self) -> Vec<u8> {
        let mut encoder = HessianEncoder::default();
        encoder.write_value(&HessianValue::Object {
            class: Arc::clone(&REQUEST_DEFINITION),
            fields: vec![
                HessianValue::Null,
                self.method.as_str().into(),
                self.service.as_str().into(),
                HessianValue::Map {
                    class: None,
                    entries: vec![("protocol".into(), "bolt".into())],
                },
                HessianValue::List {
                    class: Some("[string".to_owned()),
                    items: self
                        .signature
                        .iter()
                        .map(|name| name.as_str().into())
                        .collect(),
                },
            ],
        });
        for argument in &self.arguments {
            encoder.write_value(argument);
        }
        encoder.finish()
    }

    /// Decodes content that [`SofaCall::encode_content`] or a Java client has encoded.
    ///
    /// # Errors
    /// Returns an error if it is not a `SofaRequest` with its arguments.
    pub fn decode(content: &[u8]) -> Result<SofaCall, String> {
        let mut decoder = HessianDecoder::new(content);
        let request = decoder.read_value().map_err(|e| e.to_string())?;
        if !matches!(&request, HessianValue::Object { class, .. } if class.name == REQUEST_CLASS) {
            let seen = request.class_name();
            return Err(format!(
                "an object of class {seen}, expected {REQUEST_CLASS}"
            ));
        }
        let text = |field: &'static str| {
            request
                .field(field)
                .and_then(HessianValue::as_str)
                .map(str::to_owned)
                .ok_or_else(|| missing_field_error(field))
        };
        let signature = match request.field("methodArgSigs") {
            Some(HessianValue::List { items, .. }) => items
                .iter()
                .map(|item| item.as_str().map(str::to_owned))
                .collect::<Option<Vec<_>>>()
                .ok_or_else(|| missing_field_error("methodArgSigs"))?,
            Some(HessianValue::Null) | None => Vec::new(),
            Some(_) => return Err(missing_field_error("methodArgSigs")),
        };
        let mut arguments = Vec::new();
        while decoder.remaining() > 0 {
            arguments.push(decoder.read_value().map_err(|e| e.to_string())?);
        }
        Ok(SofaCall {
            service: text("targetServiceUniqueName")?,
            method: text("methodName")?,
            signature,
            arguments,
        })
    }
}

fn missing_field_error(field: &str) -> String {
    format!("field {field} is missing, or of another type")
}

/// Encodes a successful response.
pub fn encode_success(value: HessianValue) -> Vec<u8> {
    encode_response(false, HessianValue::Null, value)
}

/// Encodes the response for a service that could not be called. The frame also needs the header entry
/// [`header::RESPONSE_ERROR_KEY`].
pub fn encode_failure(message: &str) -> Vec<u8> {
    encode_response(true, message.into(), HessianValue::Null)
}

fn encode_response(is_error: bool, message: HessianValue, value: HessianValue) -> Vec<u8> {
    hessian::encode(&HessianValue::Object {
        class: Arc::clone(&RESPONSE_DEFINITION),
        fields: vec![
            HessianValue::Bool(is_error),
            message,
            value,
            HessianValue::Null,
        ],
    })
}

/// Returns the text of a failed response: the error message of a `SofaResponse`, of the exception that it
/// contains, or of an exception on its own.
pub fn failure_text(content: &[u8]) -> Option<String> {
    let value = hessian::decode(content).ok()?;
    let message = |value: &HessianValue| {
        ["errorMsg", "detailMessage"]
            .iter()
            .find_map(|name| value.field(name)?.as_str().map(str::to_owned))
    };
    message(&value).or_else(|| message(value.field("appResponse")?))
}
