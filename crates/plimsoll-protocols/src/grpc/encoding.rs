//! What a plan's `[call.grpc]` sends: its method looked up, and its messages encoded or checked.

use std::sync::Arc;

use plimsoll_model::spec::{EncodedCall, GrpcSpec, Messages, Problem};
use plimsoll_model::template::Rows;

use super::schema::{Schema, SchemaError};

/// Why a server's own description of a method could not be had.
#[derive(Debug)]
pub enum Unreflected<E> {
    /// There is no way to the server.
    NoWay(E),
    /// It does not answer, or can't be asked: why.
    NoAnswer(String),
}

/// Finds the `method`, and encodes or checks its messages. `ask` asks the server what the service of this name is;
/// `lost` is given why there was no way to it.
///
/// # Errors
/// A problem that names its key below `call.grpc`.
pub fn encode<E>(
    call: &GrpcSpec,
    method: &str,
    (messages, rows): (Messages<'_>, Option<&Rows>),
    ask: impl FnOnce(&str) -> Result<Schema, Unreflected<E>>,
    lost: impl FnOnce(E),
) -> Result<EncodedCall, Problem> {
    let schema = match (&call.proto, &call.descriptor_set) {
        (Some(files), _) => {
            let imports = call.import_path.as_deref().unwrap_or(&[]);
            Schema::from_protos(files, imports).map_err(wrong("proto"))?
        }
        (None, Some(path)) => Schema::from_descriptor_set(path).map_err(wrong("descriptor_set"))?,
        (None, None) => undescribed(call, method, ask, lost)?,
    };
    let method = schema.method(method).map_err(|e| {
        let problem = wrong("method")(e);
        match (&call.proto, &call.descriptor_set) {
            (None, None) => problem.help("for a service of your own give its .proto files (proto) or a descriptor set (descriptor_set)"),
            _ => problem,
        }
    })?;
    let requests = match messages {
        Messages::Json(json) => schema.encode_all(&method, json, rows),
        Messages::Binary(given) => schema.take_all(&method, given),
    };
    let requests = requests.map_err(|e| {
        let key = match (&e, messages) {
            (SchemaError::Row { .. }, _) => return Problem::new("rows.file", e.to_string()),
            (_, Messages::Binary(_)) => "message_binary",
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
fn undescribed<E>(
    call: &GrpcSpec,
    method: &str,
    ask: impl FnOnce(&str) -> Result<Schema, Unreflected<E>>,
    lost: impl FnOnce(E),
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
    match ask(service) {
        Ok(schema) => Ok(schema),
        Err(Unreflected::NoWay(why)) => {
            lost(why);
            Err(unknown())
        }
        Err(Unreflected::NoAnswer(why)) if asked_for => {
            Err(Problem::new("call.grpc.reflection", why))
        }
        Err(Unreflected::NoAnswer(why)) => Err(unknown().help(format!(
            "for a service of your own give its .proto files (proto) or a descriptor set \
             (descriptor_set); asking the server did not help: {why}"
        ))),
    }
}
