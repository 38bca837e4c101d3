//! What a plan's `[call.grpc]` sends: its method looked up, and its messages encoded or checked.

use std::sync::Arc;

use plimsoll_model::spec::{Problem, Surroundings};
use plimsoll_model::template::Rows;

use super::call::{EncodedCall, GivenMessages};
use super::schema::{Schema, SchemaError};
use super::section::GrpcSpec;

/// A server's own description of a method, or why it could not be had.
#[derive(Debug)]
pub enum Reflected {
    /// What it says.
    Schema(Schema),
    /// There is no way to the server.
    NoWay,
    /// It does not answer, or can't be asked: why.
    NoAnswer(String),
}

/// A question to the world ([`Surroundings::ask`]): what the server says that a service is.
#[derive(Debug)]
pub struct Reflect {
    /// Package and name.
    pub service: String,
    /// Which of its methods is called.
    pub method: String,
    /// The plan wants the server to be asked.
    pub insisted: bool,
    /// The call's.
    pub metadata: Vec<(String, String)>,
    /// What came of it.
    pub answer: Reflected,
}

/// Finds the `method`, and encodes or checks its messages, which may have fields of rows; a server that has to be
/// asked is given the metadata.
///
/// # Errors
/// A problem that names its key below `call.grpc`.
pub(super) fn encode(
    call: &GrpcSpec,
    method: &str,
    (given, rows, metadata): (&GivenMessages, Option<&Rows>, &[(String, String)]),
    surroundings: &dyn Surroundings,
) -> Result<EncodedCall, Problem> {
    let schema = match (&call.proto, &call.descriptor_set) {
        (Some(files), _) => {
            let imports = call.import_path.as_deref().unwrap_or(&[]);
            Schema::from_protos(files, imports).map_err(wrong("proto"))?
        }
        (None, Some(path)) => Schema::from_descriptor_set(path).map_err(wrong("descriptor_set"))?,
        (None, None) => undescribed(call, method, metadata, surroundings)?,
    };
    let method = schema.method(method).map_err(|e| {
        let problem = wrong("method")(e);
        match (&call.proto, &call.descriptor_set) {
            (None, None) => problem.help("for a service of your own give its .proto files (call.grpc.proto) or a descriptor set (call.grpc.descriptor_set)"),
            _ => problem,
        }
    })?;
    let requests = match given {
        GivenMessages::Nothing => schema.encode_all(&method, "{}", rows),
        GivenMessages::Json(json) => schema.encode_all(&method, json, rows),
        GivenMessages::Binary(messages) => schema.take_all(&method, messages),
    };
    let requests = requests.map_err(|e| {
        let key = match (&e, given) {
            (SchemaError::Row(_), _) => return Problem::new("rows.file", e.to_string()),
            (_, GivenMessages::Binary(_)) => "message_binary",
            _ if call.message_file.is_some() => "message_file",
            _ => "message",
        };
        wrong(key)(e)
    })?;
    Ok(EncodedCall {
        method: method.path(),
        kind: method.kind(),
        messages: requests.messages,
        varying: requests.varying,
        answer: Some(Arc::new(schema.answer(&method))),
    })
}

fn wrong(key: &str) -> impl FnOnce(SchemaError) -> Problem {
    let key = format!("call.grpc.{key}");
    move |e| Problem::new(key, e.to_string())
}

/// The schema of a method that no file describes: one of the built-in services, or
/// what the server reports.
fn undescribed(
    call: &GrpcSpec,
    method: &str,
    metadata: &[(String, String)],
    surroundings: &dyn Surroundings,
) -> Result<Schema, Problem> {
    let bare = method.strip_prefix('/').unwrap_or(method);
    let service = bare
        .rsplit_once(['/', '.'])
        .map_or("", |(service, _)| service);
    let builtin = Schema::builtin().map_err(wrong("method"))?;
    let asked_for = call.reflection == Some(true);
    let named = !service.is_empty();
    if !asked_for && (!named || builtin.has_service(service) || call.reflection == Some(false)) {
        return Ok(builtin);
    }
    let unknown = || {
        let unknown = builtin.method(method).err().map(|e| e.to_string());
        Problem::new("call.grpc.method", unknown.unwrap_or_default())
    };
    let mut question = Reflect {
        service: service.to_owned(),
        method: method.to_owned(),
        insisted: asked_for,
        metadata: metadata.to_vec(),
        answer: Reflected::NoAnswer("there is no way to ask it".to_owned()),
    };
    surroundings.ask(&mut question);
    match question.answer {
        Reflected::Schema(schema) => Ok(schema),
        Reflected::NoWay => Err(unknown()),
        Reflected::NoAnswer(why) if asked_for => Err(Problem::new("call.grpc.reflection", why)),
        Reflected::NoAnswer(why) => Err(unknown().help(format!(
            "for a service of your own give its .proto files (call.grpc.proto) or a descriptor set \
             (call.grpc.descriptor_set); asking the server did not help: {why}"
        ))),
    }
}
