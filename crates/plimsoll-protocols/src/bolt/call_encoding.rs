//! Encodes a call, given as flags or plan keys, into its class, header map and content.

use super::BoltCall;
use super::header;
use super::hessian::{self, HessianValue, from_json};
use super::sofa::{self, SofaCall};

/// Encodes the call of a service's method; `arguments` is a JSON array. Without a signature, the parameter
/// types are derived from the arguments.
///
/// # Errors
/// Returns the key of the invalid value, with the reason.
pub fn encode_service_call<'a>(
    service: &str,
    method: &str,
    arguments: &str,
    signature: Option<&[String]>,
    extra: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<BoltCall, (&'static str, String)> {
    let wrong = |problem: String| ("arguments", problem);
    let json: serde_json::Value =
        serde_json::from_str(arguments).map_err(|e| wrong(format!("not JSON: {e}")))?;
    let serde_json::Value::Array(items) = json else {
        return Err(wrong(
            "not a JSON array: write one element per parameter, such as [\"text\", 7]".to_owned(),
        ));
    };
    let arguments = items
        .iter()
        .map(from_json)
        .collect::<Result<Vec<HessianValue>, _>>()
        .map_err(wrong)?;
    let signature = match signature {
        None => arguments
            .iter()
            .map(|a| a.class_name().to_owned())
            .collect(),
        Some(types) if types.len() == arguments.len() => types.to_vec(),
        Some(types) => {
            let problem = format!("{} types for {} arguments", types.len(), arguments.len());
            return Err(("signature", problem));
        }
    };
    let call = SofaCall {
        service: service.to_owned(),
        method: method.to_owned(),
        signature,
        arguments,
    };
    Ok(BoltCall {
        method: format!("{service}/{method}"),
        class: sofa::REQUEST_CLASS.as_bytes().to_vec(),
        header: append_entries(call.encode_header(), extra),
        content: call.encode_content(),
        ..BoltCall::default()
    })
}

/// Returns a call with this class and already encoded content.
pub fn raw_call<'a>(
    class: &str,
    content: Vec<u8>,
    extra: impl Iterator<Item = (&'a str, &'a str)>,
) -> BoltCall {
    BoltCall {
        method: class.to_owned(),
        class: class.as_bytes().to_vec(),
        header: append_entries(Vec::new(), extra),
        content,
        ..BoltCall::default()
    }
}

/// Encodes a JSON value in Hessian.
///
/// # Errors
/// Returns an error if the text is not JSON or can't be converted.
pub fn encode_content(json: &str) -> Result<Vec<u8>, String> {
    let json = serde_json::from_str(json).map_err(|e| format!("not JSON: {e}"))?;
    Ok(hessian::encode(&from_json(&json)?))
}

fn append_entries<'a>(
    mut map: Vec<u8>,
    extra: impl Iterator<Item = (&'a str, &'a str)>,
) -> Vec<u8> {
    for (key, value) in extra {
        header::write(&mut map, Some(key.as_bytes()), Some(value.as_bytes()));
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::iter;

    #[test]
    fn signature_defaults_to_argument_types() {
        let typed = encode_service_call("a.B:1.0", "c", "[\"x\", 7]", None, iter::once(("k", "v")))
            .unwrap();
        assert_eq!(typed.method, "a.B:1.0/c");
        assert_eq!(header::find(&typed.header, b"k"), Ok(Some(&b"v"[..])));
        let call = SofaCall::decode(&typed.content).unwrap();
        assert_eq!(call.signature, ["java.lang.String", "int"]);
        let types = ["java.lang.Object".to_owned(), "long".to_owned()];
        let typed =
            encode_service_call("a.B:1.0", "c", "[\"x\", 7]", Some(&types), iter::empty()).unwrap();
        assert_eq!(SofaCall::decode(&typed.content).unwrap().signature, types);
    }

    #[test]
    fn invalid_argument_error_names_key() {
        let wrong = |arguments: &str, types: Option<&[String]>| {
            encode_service_call("a", "b", arguments, types, iter::empty()).unwrap_err()
        };
        assert!(wrong("[", None).1.contains("not JSON"));
        assert!(wrong("{}", None).1.contains("not a JSON array"));
        let (key, problem) = wrong("[1]", Some(&[]));
        assert_eq!(
            (key, problem.as_str()),
            ("signature", "0 types for 1 arguments")
        );
    }
}
