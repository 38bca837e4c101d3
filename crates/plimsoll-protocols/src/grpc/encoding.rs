//! Encoding of a plan's `[call.grpc]`: looks up the method, and encodes or checks the messages.

use std::sync::Arc;

use plimsoll_model::rows::template::FieldScope;
use plimsoll_model::spec::{Problem, ResolveContext};

use super::call::{EncodedMethod, PlanMessages};
use super::schema::{Schema, SchemaError};
use super::section::GrpcSpec;
use crate::journey::SharedAnswerReader;

/// The result of a reflection query.
#[derive(Debug)]
pub enum ReflectionResult {
    /// The server's schema.
    Schema(Schema),
    /// The server can't be reached.
    Unreachable,
    /// The server gave no schema, or can't be queried, for this reason.
    NoAnswer(String),
}

/// A query for a server's description of a service ([`ResolveContext::answer_protocol_query`]).
#[derive(Debug)]
pub struct ReflectionQuery {
    /// The service with its package.
    pub service: String,
    /// The method that the plan calls.
    pub method: String,
    /// Whether the plan demands reflection.
    pub is_required: bool,
    /// The metadata of the call, which is also sent with the query.
    pub metadata: Vec<(String, String)>,
    /// The URL of the server.
    pub target: String,
    /// The `:authority` of the call; `None`: host:port of the target.
    pub authority: Option<String>,
    /// Types that the messages refer to and that the service's descriptors may not include.
    pub types: Vec<String>,
    /// The result.
    pub answer: ReflectionResult,
}

/// Looks up `method` of the server at `url`, and encodes or checks its messages, which may contain template fields for
/// values of rows and of earlier responses. If the server must be queried, the metadata is sent with the query.
///
/// # Errors
/// Returns a problem that names its key below `call.grpc`.
pub(super) fn encode(
    (call, url): (&GrpcSpec, &str),
    method: &str,
    (given, scope, metadata): (&PlanMessages, FieldScope<'_>, &[(String, String)]),
    surroundings: &dyn ResolveContext,
) -> Result<EncodedMethod, Problem> {
    let described = match (&call.proto, &call.descriptor_set) {
        (Some(files), _) => {
            let imports = call.import_path.as_deref().unwrap_or(&[]);
            Some(Schema::from_protos(files, imports).map_err(to_problem_at("proto"))?)
        }
        (None, Some(path)) => {
            let set = Schema::from_descriptor_set(path);
            Some(set.map_err(to_problem_at("descriptor_set"))?)
        }
        (None, None) => None,
    };
    let schema = match described {
        Some(schema) if call.reflection != Some(true) => schema,
        files => {
            let types = types_in_messages(given);
            find_schema(
                (call, url),
                method,
                (metadata, types),
                files.as_ref(),
                surroundings,
            )?
        }
    };
    let method = schema.method(method).map_err(|e| {
        let problem = to_problem_at("method")(e);
        match (&call.proto, &call.descriptor_set) {
            (None, None) => problem.help("for a service of your own give its .proto files (call.grpc.proto) or a descriptor set (call.grpc.descriptor_set)"),
            _ => problem,
        }
    })?;
    let requests = match given {
        PlanMessages::EmptyMessage => schema.encode_all(&method, "{}", scope),
        PlanMessages::Json(json) => schema.encode_all(&method, json, scope),
        PlanMessages::Binary(messages) => schema.requests_from_encoded(&method, messages),
    };
    let requests = requests.map_err(|e| {
        let key = match (&e, given) {
            (SchemaError::Row(_), _) => return Problem::new("rows.file", e.to_string()),
            (_, PlanMessages::Binary(_)) => "message_binary",
            _ if call.message_file.is_some() => "message_file",
            _ => "message",
        };
        to_problem_at(key)(e)
    })?;
    let mut answer = schema.answer_shapes(&method);
    if let Some(expected) = &call.expect_message {
        let expected = schema.expected_answer(&method, &expected.0);
        answer.expected = Some(expected.map_err(to_problem_at("expect_message"))?);
    }
    Ok(EncodedMethod {
        method: method.path(),
        kind: method.kind(),
        messages: requests.messages,
        varying: requests.varying,
        answer_shapes: Some(Arc::new(answer)),
        answer_schema: Some(SharedAnswerReader::new(schema.answer_reader(&method))),
    })
}

fn to_problem_at(key: &str) -> impl FnOnce(SchemaError) -> Problem {
    let key = format!("call.grpc.{key}");
    move |e| Problem::new(key, e.to_string())
}

/// The maximum number of types to query. It bounds the number of queries; messages with more types are unusual.
const MAX_QUERIED_TYPES: usize = 64;

/// Returns the types that messages refer to and that the service's descriptors may not include: types in an `Any`, by
/// its `@type`, and extensions, by their names in brackets.
fn types_in_messages(given: &PlanMessages) -> Vec<String> {
    let PlanMessages::Json(json) = given else {
        return Vec::new();
    };
    let mut names: Vec<String> = Vec::new();
    let mut strings = json.split('"').skip(1);
    let mut is_type = false;
    // Every second part is the content of a string. Escaped quotes break this, but then at worst a name is missed.
    while let Some(text) = strings.next() {
        let name = if std::mem::replace(&mut is_type, text == "@type") {
            text.rsplit_once('/').map(|(_, name)| name)
        } else {
            text.strip_prefix('[')
                .and_then(|rest| rest.strip_suffix(']'))
        };
        let is_name = |name: &&str| {
            name.contains('.')
                && name
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"._".contains(&b))
        };
        if let Some(name) = name.filter(is_name)
            && !names.iter().any(|known| known == name)
            && names.len() < MAX_QUERIED_TYPES
        {
            names.push(name.to_owned());
        }
        let between = strings.next();
        is_type &= between.is_some_and(|between| between.trim() == ":");
    }
    names
}

/// Returns the schema of a method that no file describes: the schema of a built-in service, or the one that the
/// server's reflection describes, supplemented by `files`.
fn find_schema(
    (call, url): (&GrpcSpec, &str),
    method: &str,
    (metadata, types): (&[(String, String)], Vec<String>),
    files: Option<&Schema>,
    surroundings: &dyn ResolveContext,
) -> Result<Schema, Problem> {
    let bare = method.strip_prefix('/').unwrap_or(method);
    let service = bare
        .rsplit_once(['/', '.'])
        .map_or("", |(service, _)| service);
    let builtin = Schema::builtin().map_err(to_problem_at("method"))?;
    let asked_for = call.reflection == Some(true);
    let named = !service.is_empty();
    if !asked_for && (!named || builtin.has_service(service) || call.reflection == Some(false)) {
        return Ok(builtin);
    }
    let unknown = || {
        let unknown = builtin.method(method).err().map(|e| e.to_string());
        Problem::new("call.grpc.method", unknown.unwrap_or_default())
    };
    let mut question = ReflectionQuery {
        service: service.to_owned(),
        method: method.to_owned(),
        is_required: asked_for,
        metadata: metadata.to_vec(),
        target: url.to_owned(),
        authority: call.authority.clone(),
        types,
        answer: ReflectionResult::NoAnswer("the server can't be queried here".to_owned()),
    };
    surroundings.answer_protocol_query(&mut question);
    match question.answer {
        ReflectionResult::Schema(schema) => match files {
            #[cfg(feature = "targets")]
            Some(files) => schema
                .supplement_with(files)
                .map_err(to_problem_at("proto")),
            _ => Ok(schema),
        },
        ReflectionResult::Unreachable => Err(unknown()),
        ReflectionResult::NoAnswer(why) if asked_for => {
            Err(Problem::new("call.grpc.reflection", why))
        }
        ReflectionResult::NoAnswer(why) => Err(unknown().help(format!(
            "for a service of your own give its .proto files (call.grpc.proto) or a descriptor set \
             (call.grpc.descriptor_set); asking the server failed: {why}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_names_are_collected_from_messages() {
        let of = |json: &str| types_in_messages(&PlanMessages::Json(json.to_owned()));
        let nested = r#"[{"a": {"@type" : "type.googleapis.com/b.Y", "[p.ext]": 1, "x": "@type"}},
            {"@type": "x/b.Y", "y": {"@type": "https://h/c.Z"}, "[1]": "[no ext]"}]"#;
        assert_eq!(of(nested), ["b.Y", "p.ext", "c.Z"]);
        assert_eq!(of("{}"), [""; 0]);
        assert_eq!(of("\"@type"), [""; 0]);
        let many: String = (0..100)
            .map(|i| format!("{{\"@type\": \"x/a.T{i}\"}}"))
            .collect();
        assert_eq!(of(&many).len(), MAX_QUERIED_TYPES);
    }
}
