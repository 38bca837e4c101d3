//! Server reflection: what a server itself says its services are (grpc.reflection.v1, and
//! v1alpha where a server has only that). The binary asks before a run.
//!
//! A question is a stream of one message, so nothing has to be kept open between two.
//! Everything is bounded: a server that goes on naming imports, or does not answer, is
//! given up on.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use prost_reflect::DescriptorPool;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::tokio_stream;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest as Wanted;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

use super::client::{Connection, outcome_of};
use super::schema::{Descriptor, Schema, assemble};

/// Files that a server's services may be described in.
const MAX_FILES: usize = 5_000;
/// Bytes of all of them.
const MAX_BYTES: usize = 64 << 20;
/// For the answer to one question.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Why a server's services are not known.
#[derive(Debug, thiserror::Error)]
pub enum ReflectionError {
    /// Neither version is implemented.
    #[error(
        "the server has no reflection (neither grpc.reflection.v1 nor v1alpha): describe the service with .proto files or a descriptor set"
    )]
    Off,
    /// The server answers with a status.
    #[error("asking the server for {what}: status {}: {}", outcome_of(status.code()).code(), status.message())]
    Refused {
        /// The question.
        what: String,
        /// Not OK.
        status: Box<Status>,
    },
    /// It answers, and not what was asked.
    #[error("asking the server for {what}: {problem}")]
    Answer {
        /// The question.
        what: String,
        /// Of the answer.
        problem: String,
    },
    /// More than is worth reading.
    #[error("the server's services are described in more than {MAX_FILES} files, or {} MiB of them", MAX_BYTES >> 20)]
    TooMany,
}

impl ReflectionError {
    /// What to do about it, where that is known.
    pub fn advice(&self) -> Option<&'static str> {
        match self {
            ReflectionError::Refused { status, .. } => match status.code() {
                Code::Unauthenticated | Code::PermissionDenied => Some(
                    "give what the server wants to see with --metadata 'authorization: $VARIABLE' (call.grpc.metadata)",
                ),
                _ => None,
            },
            _ => None,
        }
    }
}

const ALIKE: &str = "does it answer every method alike?";

/// What a question is about, for people.
fn what(wanted: &Wanted) -> String {
    match wanted {
        Wanted::FileByFilename(name) => format!("file {name:?}"),
        Wanted::FileContainingSymbol(name) => format!("{name:?}"),
        _ => "its services".to_owned(),
    }
}

/// Reflection of one server, in the version it has: the messages are the same in both.
struct Mirror<'a> {
    connection: &'a Connection,
    version: &'static str,
}

impl Mirror<'_> {
    async fn call(&self, wanted: Wanted) -> Result<Option<ServerReflectionResponse>, Status> {
        let mut grpc = self.connection.grpc();
        let unavailable = |e| Status::unavailable(format!("{e}"));
        grpc.ready().await.map_err(unavailable)?;
        let path = format!(
            "/grpc.reflection.{}.ServerReflection/ServerReflectionInfo",
            self.version
        );
        let path = PathAndQuery::try_from(path).map_err(|e| Status::internal(e.to_string()))?;
        let question = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(wanted),
        };
        let questions = tokio_stream::iter([question]);
        let codec = ProstCodec::<ServerReflectionRequest, ServerReflectionResponse>::default();
        let answer = grpc.streaming(Request::new(questions), path, codec).await?;
        answer.into_inner().message().await
    }

    async fn ask(&self, wanted: Wanted) -> Result<MessageResponse, ReflectionError> {
        let what = what(&wanted);
        let called = tokio::time::timeout(ANSWER_LIMIT, self.call(wanted));
        let reply = called
            .await
            .map_err(|_| ReflectionError::Answer {
                what: what.clone(),
                problem: format!("no answer within {} s", ANSWER_LIMIT.as_secs()),
            })?
            .map_err(|status| match status.code() {
                Code::Unimplemented => ReflectionError::Off,
                // From tonic, which could not decode the answer: it is another message.
                Code::Internal if status.message().starts_with("failed to decode") => {
                    let problem = format!("{} ({ALIKE})", status.message());
                    ReflectionError::Answer {
                        what: what.clone(),
                        problem,
                    }
                }
                _ => ReflectionError::Refused {
                    what: what.clone(),
                    status: Box::new(status),
                },
            })?;
        let problem = match reply.and_then(|reply| reply.message_response) {
            Some(MessageResponse::ErrorResponse(refusal)) => {
                format!("error {}: {}", refusal.error_code, refusal.error_message)
            }
            Some(response) => return Ok(response),
            None => format!("an empty answer ({ALIKE})"),
        };
        Err(ReflectionError::Answer { what, problem })
    }

    async fn services(&self) -> Result<Vec<String>, ReflectionError> {
        match self.ask(Wanted::ListServices(String::new())).await? {
            MessageResponse::ListServicesResponse(found) => {
                Ok(found.service.into_iter().map(|s| s.name).collect())
            }
            _ => Err(unasked("its services".to_owned())),
        }
    }

    async fn files(&self, wanted: Wanted) -> Result<Vec<Descriptor>, ReflectionError> {
        let what = what(&wanted);
        let MessageResponse::FileDescriptorResponse(found) = self.ask(wanted).await? else {
            return Err(unasked(what));
        };
        let found = found.file_descriptor_proto.iter();
        let decoded = found.map(|file| Descriptor::decode(file));
        decoded
            .collect::<Result<_, _>>()
            .map_err(|e| ReflectionError::Answer {
                what,
                problem: format!("not a file descriptor: {e}"),
            })
    }
}

fn unasked(what: String) -> ReflectionError {
    let problem = "the answer to another question".to_owned();
    ReflectionError::Answer { what, problem }
}

/// Asks the server for all its services, or for `service` alone.
///
/// # Errors
/// When the server has no reflection, or does not answer as it should.
pub async fn schema(
    connection: &Connection,
    service: Option<&str>,
) -> Result<Schema, ReflectionError> {
    let mut mirror = Mirror {
        connection,
        version: "v1",
    };
    let services = match mirror.services().await {
        Err(ReflectionError::Off) => {
            mirror.version = "v1alpha";
            mirror.services().await?
        }
        other => other?,
    };
    let wanted: Vec<String> = match service {
        Some(name) if services.iter().any(|known| known == name) => vec![name.to_owned()],
        // Unknown: all of them, so that the nearest names can be suggested.
        _ => services
            .into_iter()
            .filter(|name| !name.starts_with("grpc.reflection."))
            .collect(),
    };
    let mut gathered = Gathered::default();
    let mut broken = BTreeMap::new();
    for service in &wanted {
        let files = mirror
            .files(Wanted::FileContainingSymbol(service.clone()))
            .await;
        match described(files)? {
            Ok(files) => gathered.take(files)?,
            Err(why) => {
                broken.insert(service.clone(), why);
            }
        }
    }
    gathered.with_imports(&mirror).await?;
    let files: Vec<Descriptor> = gathered.files.into_values().collect();
    let file_of = |service: &String| {
        let mut files = files.iter();
        let found = files.find(|file| file.services().any(|named| named == *service));
        found.map(|file| file.name().to_owned())
    };
    let file_of: BTreeMap<&String, Option<String>> = wanted
        .iter()
        .map(|service| (service, file_of(service)))
        .collect();
    let assembled = assemble(files, &gathered.absent);
    for (service, file) in file_of {
        if assembled.pool.get_service_by_name(service).is_some() || broken.contains_key(service) {
            continue;
        }
        let why = match &file {
            None => "the server sends files that do not define it".to_owned(),
            Some(file) => match assembled.broken.get(file) {
                None => format!("file {file} does not define it"),
                Some(why) => format!("file {file}: {why}"),
            },
        };
        broken.insert(service.clone(), why);
    }
    let source = "the server's reflection".to_owned();
    Ok(Schema::of(assembled, source, broken))
}

/// An answer with a problem concerns its question alone; a server that does not answer has nothing more to offer.
fn described(
    files: Result<Vec<Descriptor>, ReflectionError>,
) -> Result<Result<Vec<Descriptor>, String>, ReflectionError> {
    match files {
        Ok(files) => Ok(Ok(files)),
        Err(ReflectionError::Answer { problem, .. }) => Ok(Err(problem)),
        Err(other) => Err(other),
    }
}

/// Files that a server has sent.
#[derive(Default)]
struct Gathered {
    files: BTreeMap<String, Descriptor>,
    bytes: usize,
    /// Those that it has not, and why.
    absent: BTreeMap<String, String>,
}

impl Gathered {
    fn take(&mut self, files: Vec<Descriptor>) -> Result<(), ReflectionError> {
        for file in files {
            self.bytes += file.size();
            self.files.insert(file.name().to_owned(), file);
        }
        if self.files.len() > MAX_FILES || self.bytes > MAX_BYTES {
            return Err(ReflectionError::TooMany);
        }
        Ok(())
    }

    /// Some servers send a file with its imports, some have to be asked for each, and those
    /// that come with protobuf some don't have at all.
    async fn with_imports(&mut self, mirror: &Mirror<'_>) -> Result<(), ReflectionError> {
        let known = DescriptorPool::global();
        let mut asked = BTreeSet::new();
        let mut missing: VecDeque<String> = imports(self.files.values()).collect();
        while let Some(name) = missing.pop_front() {
            if self.files.contains_key(&name) || !asked.insert(name.clone()) {
                continue;
            }
            if asked.len() + self.files.len() > MAX_FILES {
                return Err(ReflectionError::TooMany);
            }
            let found = match known.get_file_by_name(&name) {
                Some(file) => Ok(vec![Descriptor::known(&file)]),
                None => described(mirror.files(Wanted::FileByFilename(name.clone())).await)?,
            };
            match found {
                Ok(found) => {
                    missing.extend(imports(found.iter()));
                    self.take(found)?;
                }
                Err(why) => {
                    self.absent.insert(name, why);
                }
            }
        }
        Ok(())
    }
}

fn imports<'a>(files: impl Iterator<Item = &'a Descriptor>) -> impl Iterator<Item = String> {
    files.flat_map(|file| file.imports().to_vec())
}
