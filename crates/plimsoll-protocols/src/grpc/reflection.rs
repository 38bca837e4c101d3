//! Server reflection: reads a server's own description of its services (grpc.reflection.v1, or v1alpha if the server
//! has only that). It is used when a plan is resolved, and by the commands in `query_commands`.
//!
//! Each query is a stream with one message, so no stream stays open between queries. Time, size and the number of
//! files are bounded: a server that keeps naming imports, or does not answer, is abandoned.
//!
//! This file is long because queries and answers of both versions of the protocol share one state machine.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use prost_reflect::DescriptorPool;
use tokio::task::JoinSet;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::tokio_stream;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest as Query;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ErrorResponse, ServerReflectionRequest, ServerReflectionResponse};

use super::client::{GrpcConnection, outcome_from_code};
use super::schema::{ProtoFile, Schema, assemble};

#[cfg(test)]
mod tests;

/// The maximum number of files that describe a server's services.
const MAX_FILES: usize = 5_000;
/// Maximum total size of the files that describe a server's services, in bytes.
const MAX_DESCRIPTOR_BYTES: usize = 64 << 20;
/// The timeout of one query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout of all queries together.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(60);
/// The limit of concurrent queries.
const MAX_CONCURRENT_QUERIES: usize = 8;

/// Why a server gives no description of its services.
#[derive(Debug, thiserror::Error)]
pub enum ReflectionError {
    /// The server implements neither version of reflection.
    #[error(
        "the server has no reflection (neither grpc.reflection.v1 nor v1alpha): describe the service with .proto files or a descriptor set"
    )]
    NotSupported,
    /// The server answers with an error status.
    #[error("asking the server for {what}: status {}: {}", outcome_from_code(status.code()).code(), status.message())]
    Refused {
        /// The subject of the query.
        what: String,
        /// The status, which is not OK.
        status: Box<Status>,
    },
    /// The server's answer is invalid or does not fit the query.
    #[error("asking the server for {what}: {problem}")]
    InvalidAnswer {
        /// The subject of the query.
        what: String,
        /// What is wrong with the answer.
        problem: String,
    },
    /// The description exceeds the limits.
    #[error("the server's services are described in more than {MAX_FILES} files, or {} MiB of them", MAX_DESCRIPTOR_BYTES >> 20)]
    TooLarge,
    /// The server answers, but not all queries within the timeout.
    #[error("the server sent only {files} of its files within {} s: its reflection is too slow", limit.as_secs_f64())]
    TooSlow {
        /// The number of files received.
        files: usize,
        /// The timeout.
        limit: Duration,
    },
}

impl ReflectionError {
    /// Returns advice for the error, if there is any.
    pub fn advice(&self) -> Option<&'static str> {
        match self {
            ReflectionError::Refused { status, .. } => match status.code() {
                Code::Unauthenticated | Code::PermissionDenied => Some(
                    "pass credentials with --metadata 'authorization: $VARIABLE' (call.grpc.metadata)",
                ),
                _ => None,
            },
            ReflectionError::TooSlow { .. } => {
                Some("ask for one service: plimsoll grpc describe URL package.Service")
            }
            _ => None,
        }
    }
}

const SAME_ANSWER_HINT: &str = "does it send the same answer for every method?";

/// Describes the subject of a query for an error message.
fn describe_subject(wanted: &Query) -> String {
    match wanted {
        Query::FileByFilename(name) => format!("file {name:?}"),
        Query::FileContainingSymbol(name) => format!("{name:?}"),
        _ => "its services".to_owned(),
    }
}

/// The versions of reflection, whose messages are the same.
const REFLECTION_VERSIONS: [&str; 2] = ["v1", "v1alpha"];

/// A reflection client of one server in one version.
#[derive(Clone)]
struct ReflectionClient {
    connection: GrpcConnection,
    version: &'static str,
}

impl ReflectionClient {
    async fn call(&self, wanted: Query) -> Result<Option<ServerReflectionResponse>, Status> {
        let grpc = self.connection.grpc_client();
        let mut grpc = grpc.max_decoding_message_size(MAX_DESCRIPTOR_BYTES);
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

    /// Sends a query and returns the answer, which may be an error response.
    async fn send_query(&self, wanted: Query) -> Result<MessageResponse, ReflectionError> {
        let what = describe_subject(&wanted);
        let called = tokio::time::timeout(QUERY_TIMEOUT, self.call(wanted));
        let called = called.await.map_err(|_| ReflectionError::InvalidAnswer {
            what: what.clone(),
            problem: format!("no answer within {} s", QUERY_TIMEOUT.as_secs()),
        })?;
        let reply = match called {
            Ok(reply) => reply,
            // Some servers answer an unknown symbol with the stream's status.
            Err(status) if status.code() == Code::NotFound => {
                return Ok(MessageResponse::ErrorResponse(ErrorResponse {
                    error_code: Code::NotFound as i32,
                    error_message: status.message().to_owned(),
                }));
            }
            Err(status) => return Err(status_error(what, status)),
        };
        reply
            .and_then(|reply| reply.message_response)
            .ok_or_else(|| {
                let problem = format!("an empty answer ({SAME_ANSWER_HINT})");
                ReflectionError::InvalidAnswer { what, problem }
            })
    }

    /// Sends the first query in each version until one is answered. Other failures (a status, an error page
    /// of a proxy, no response) are reported only if no version works.
    async fn negotiate_version(
        connection: &GrpcConnection,
        wanted: &Query,
    ) -> Result<(ReflectionClient, MessageResponse), ReflectionError> {
        let mut failure = ReflectionError::NotSupported;
        for version in REFLECTION_VERSIONS {
            let client = ReflectionClient {
                connection: connection.clone(),
                version,
            };
            let answered = client.send_query(wanted.clone()).await;
            match answered.and_then(|answer| check_answer_kind(wanted, answer)) {
                Ok(answer) => return Ok((client, answer)),
                // The failure of the newest version is the most informative.
                Err(e) if matches!(failure, ReflectionError::NotSupported) => failure = e,
                Err(_) => {}
            }
        }
        Err(failure)
    }

    async fn query_services(&self) -> Result<Vec<String>, ReflectionError> {
        parse_services(self.send_query(Query::ListServices(String::new())).await?)
    }

    async fn query_files(&self, wanted: Query) -> Result<Vec<ProtoFile>, ReflectionError> {
        let what = describe_subject(&wanted);
        parse_files(self.send_query(wanted).await?, what)
    }

    /// Queries the files of all these names concurrently; returns the answers in the order of the names.
    async fn query_files_concurrently(
        &self,
        names: Vec<String>,
        wanted: fn(String) -> Query,
    ) -> Vec<(String, Result<Vec<ProtoFile>, ReflectionError>)> {
        let mut questions = JoinSet::new();
        for name in names {
            let client = self.clone();
            questions.spawn(async move {
                let files = client.query_files(wanted(name.clone())).await;
                (name, files)
            });
        }
        let mut answers = questions.join_all().await;
        answers.sort_by(|a, b| a.0.cmp(&b.0));
        answers
    }
}

/// Converts the status with which a query about `what` ended to an error.
fn status_error(what: String, status: Status) -> ReflectionError {
    match status.code() {
        Code::Unimplemented => ReflectionError::NotSupported,
        // tonic could not decode the answer, so it is a message of another type.
        Code::Internal if status.message().starts_with("failed to decode") => {
            let problem = format!("{} ({SAME_ANSWER_HINT})", status.message());
            ReflectionError::InvalidAnswer { what, problem }
        }
        _ => ReflectionError::Refused {
            what,
            status: Box::new(status),
        },
    }
}

/// Returns `answer` if its kind fits the query. An error response is accepted for a symbol, but not for the list of
/// services.
fn check_answer_kind(
    wanted: &Query,
    answer: MessageResponse,
) -> Result<MessageResponse, ReflectionError> {
    match (wanted, answer) {
        (Query::ListServices(_), answer @ MessageResponse::ListServicesResponse(_))
        | (
            Query::FileContainingSymbol(_),
            answer @ (MessageResponse::FileDescriptorResponse(_)
            | MessageResponse::ErrorResponse(_)),
        ) => Ok(answer),
        (wanted, answer) => Err(mismatch_error(answer, describe_subject(wanted))),
    }
}

fn parse_services(answer: MessageResponse) -> Result<Vec<String>, ReflectionError> {
    let what = describe_subject(&Query::ListServices(String::new()));
    match answer {
        MessageResponse::ListServicesResponse(found) => {
            Ok(found.service.into_iter().map(|s| s.name).collect())
        }
        other => Err(mismatch_error(other, what)),
    }
}

fn parse_files(answer: MessageResponse, what: String) -> Result<Vec<ProtoFile>, ReflectionError> {
    let found = match answer {
        MessageResponse::FileDescriptorResponse(found) => found.file_descriptor_proto,
        other => return Err(mismatch_error(other, what)),
    };
    let decoded = found.iter().map(|file| ProtoFile::decode(file));
    decoded
        .collect::<Result<_, _>>()
        .map_err(|e| ReflectionError::InvalidAnswer {
            what,
            problem: format!("not a file descriptor: {e}"),
        })
}

/// Returns the error for an error response, or for the answer to another query.
fn mismatch_error(answer: MessageResponse, what: String) -> ReflectionError {
    let problem = match answer {
        MessageResponse::ErrorResponse(refusal) => {
            format!("error {}: {}", refusal.error_code, refusal.error_message)
        }
        _ => "the answer to another request".to_owned(),
    };
    ReflectionError::InvalidAnswer { what, problem }
}

/// The subject of a query.
#[derive(Clone, Copy, Debug)]
pub enum SchemaQuery<'a> {
    /// All services that the server lists.
    Services,
    /// A service, method or type by its full name. If the server does not know it: all services, so that
    /// similar names can be suggested.
    Symbol(&'a str),
}

/// Queries the server for its descriptors, and for those of `types`, to which only the messages of the plan refer. A
/// type that the server does not know is left out.
///
/// # Errors
/// Returns an error if the server has no reflection, gives invalid answers, or takes too long.
pub async fn request_schema(
    connection: &GrpcConnection,
    inquiry: SchemaQuery<'_>,
    types: &[String],
) -> Result<Schema, ReflectionError> {
    request_schema_within(TOTAL_TIMEOUT, connection, inquiry, types).await
}

/// Does the same as [`request_schema`], with `limit` as the timeout of all queries together.
///
/// # Errors
/// Returns the errors of [`request_schema`].
pub async fn request_schema_within(
    limit: Duration,
    connection: &GrpcConnection,
    inquiry: SchemaQuery<'_>,
    types: &[String],
) -> Result<Schema, ReflectionError> {
    let mut collector = FileCollector::default();
    let asked = tokio::time::timeout(limit, collector.collect(connection, inquiry, types));
    let wanted = match asked.await {
        Ok(wanted) => wanted?,
        Err(_) => {
            let files = collector.files.len();
            return Err(ReflectionError::TooSlow { files, limit });
        }
    };
    Ok(collector.into_schema(&wanted))
}

/// Separates two kinds of errors: the inner `Err` is a problem of a single answer, the outer `Err` a failure that ends
/// all queries.
fn separate_problem(
    files: Result<Vec<ProtoFile>, ReflectionError>,
) -> Result<Result<Vec<ProtoFile>, String>, ReflectionError> {
    match files {
        Ok(files) => Ok(Ok(files)),
        Err(ReflectionError::InvalidAnswer { problem, .. }) => Ok(Err(problem)),
        Err(other) => Err(other),
    }
}

/// The files received from a server.
#[derive(Default)]
struct FileCollector {
    files: BTreeMap<String, ProtoFile>,
    bytes: usize,
    /// Files that the server does not have, with the reasons.
    absent: BTreeMap<String, String>,
    /// Services that the server does not describe, with the reasons.
    broken: BTreeMap<String, String>,
}

impl FileCollector {
    /// Sends all queries; returns the requested services.
    async fn collect(
        &mut self,
        connection: &GrpcConnection,
        inquiry: SchemaQuery<'_>,
        types: &[String],
    ) -> Result<Vec<String>, ReflectionError> {
        let list = Query::ListServices(String::new());
        let first = match inquiry {
            SchemaQuery::Services => list,
            SchemaQuery::Symbol(name) => Query::FileContainingSymbol(name.to_owned()),
        };
        let (mirror, answer) = ReflectionClient::negotiate_version(connection, &first).await?;
        let services = match inquiry {
            SchemaQuery::Services => parse_services(answer)?,
            SchemaQuery::Symbol(_) => {
                match separate_problem(parse_files(answer, describe_subject(&first)))? {
                    Ok(files) => {
                        let services = files.iter().flat_map(ProtoFile::services).collect();
                        self.add_files(files)?;
                        services
                    }
                    // The symbol is unknown: lists all services, so that similar names can be suggested. A server may
                    // describe services without listing any.
                    Err(_) => mirror.query_services().await.unwrap_or_default(),
                }
            }
        };
        let is_reflection = |name: &String| name.starts_with("grpc.reflection.");
        let services: Vec<String> = services.into_iter().filter(|s| !is_reflection(s)).collect();
        for (name, why) in self.query_symbols(&mirror, &services).await? {
            self.broken.insert(name, why);
        }
        self.query_symbols(&mirror, types).await?;
        self.request_imports(&mirror).await?;
        Ok(services)
    }

    /// Queries the files of symbols that no file defines yet, several at once. Returns the symbols that the
    /// server does not describe, with the reasons.
    async fn query_symbols(
        &mut self,
        mirror: &ReflectionClient,
        symbols: &[String],
    ) -> Result<Vec<(String, String)>, ReflectionError> {
        let mut refused = Vec::new();
        let mut defined: BTreeSet<String> = self.files.values().flat_map(file_symbols).collect();
        let mut left = symbols.iter();
        loop {
            let fresh = left.by_ref().filter(|symbol| !defined.contains(*symbol));
            let batch: Vec<String> = fresh.take(MAX_CONCURRENT_QUERIES).cloned().collect();
            if batch.is_empty() {
                return Ok(refused);
            }
            let answers = mirror
                .query_files_concurrently(batch, Query::FileContainingSymbol)
                .await;
            for (symbol, files) in answers {
                match separate_problem(files)? {
                    Ok(files) => {
                        defined.extend(files.iter().flat_map(file_symbols));
                        self.add_files(files)?;
                    }
                    Err(why) => refused.push((symbol, why)),
                }
            }
        }
    }

    fn add_files(&mut self, files: Vec<ProtoFile>) -> Result<(), ReflectionError> {
        for file in files {
            // Some servers send a file's imports with every file.
            if let Some(known) = self.files.get(file.name()) {
                self.bytes -= known.size();
            }
            self.bytes += file.size();
            self.files.insert(file.name().to_owned(), file);
        }
        if self.files.len() > MAX_FILES || self.bytes > MAX_DESCRIPTOR_BYTES {
            return Err(ReflectionError::TooLarge);
        }
        Ok(())
    }

    /// Queries missing imports. Some servers send a file with its imports, others have to be asked for each import, and
    /// some do not have the files that come with protobuf.
    async fn request_imports(&mut self, mirror: &ReflectionClient) -> Result<(), ReflectionError> {
        let known = DescriptorPool::global();
        let mut asked = BTreeSet::new();
        let mut missing: VecDeque<String> = imports(self.files.values()).collect();
        loop {
            let mut batch = Vec::new();
            while batch.len() < MAX_CONCURRENT_QUERIES
                && let Some(name) = missing.pop_front()
            {
                if !self.files.contains_key(&name)
                    && known.get_file_by_name(&name).is_none()
                    && asked.insert(name.clone())
                {
                    batch.push(name);
                }
            }
            if batch.is_empty() {
                return Ok(());
            }
            if asked.len() + self.files.len() > MAX_FILES {
                return Err(ReflectionError::TooLarge);
            }
            for (name, files) in mirror
                .query_files_concurrently(batch, Query::FileByFilename)
                .await
            {
                match separate_problem(files)? {
                    Ok(found) => {
                        missing.extend(imports(found.iter()));
                        self.add_files(found)?;
                    }
                    Err(why) => drop(self.absent.insert(name, why)),
                }
            }
        }
    }

    /// Assembles the files into a schema. `wanted` lists the services that the files should define.
    fn into_schema(self, wanted: &[String]) -> Schema {
        let FileCollector {
            files,
            absent,
            mut broken,
            ..
        } = self;
        let services = files.values().flat_map(|file| {
            let name = file.name();
            file.services().map(move |s| (s, name.to_owned()))
        });
        let file_of: BTreeMap<String, String> = services.collect();
        let assembled = assemble(files.into_values().collect(), &absent);
        for service in wanted {
            if assembled.pool.get_service_by_name(service).is_some() || broken.contains_key(service)
            {
                continue;
            }
            let why = match file_of.get(service) {
                None => "the server sends files that do not define it".to_owned(),
                Some(file) => match assembled.broken.get(file) {
                    None => format!("file {file} does not define it"),
                    Some(why) => format!("file {file}: {why}"),
                },
            };
            broken.insert(service.clone(), why);
        }
        Schema::from_assembled(assembled, "the server's reflection".to_owned(), broken)
    }
}

fn file_symbols(file: &ProtoFile) -> Vec<String> {
    file.services().chain(file.types()).collect()
}

fn imports<'a>(files: impl Iterator<Item = &'a ProtoFile>) -> impl Iterator<Item = String> {
    files.flat_map(|file| file.imports().to_vec())
}
