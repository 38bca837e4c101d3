//! The methods and messages of services, so that a plan can give messages as JSON.
//!
//! A schema comes from `.proto` files, from a compiled descriptor set, from a server's reflection, or is built in, for
//! the reference servers. In each case the schema is one descriptor pool. It is used when a plan is resolved; a run
//! itself handles encoded bytes only.

mod answer_reader;
mod describe;
mod descriptors;
mod editions;
mod error;
mod expected_answer;
mod json_value;
mod message;
mod proto_source;
mod shapes;
mod type_hint;
mod varying;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use plimsoll_model::formats::input;
use prost_reflect::{DescriptorPool, EnumDescriptor, MethodDescriptor, Syntax};
use protox::Compiler;
use protox::file::{File, FileResolver};

use super::call::MethodKind;
pub(super) use descriptors::{ProtoFile, assemble};
use editions::UnsupportedFeatures;
pub use error::SchemaError;
use error::format_similar_names;
pub use varying::EncodedRequests;

/// The protos of the reference servers.
const BUILTIN_PROTOS: [(&str, &str); 3] = [
    ("score.proto", include_str!("../../proto/score.proto")),
    ("orders.proto", include_str!("../../proto/orders.proto")),
    ("echo.proto", include_str!("../../proto/echo.proto")),
];
/// The minimum similarity (0 to 1) of a suggested name.
const MIN_LIKENESS: f64 = 0.75;
/// The maximum difference in similarity between a suggested name and the best one.
const LIKENESS_MARGIN: f64 = 0.08;

/// Services, methods and messages.
#[derive(Clone, Debug)]
pub struct Schema {
    pool: DescriptorPool,
    /// The origin of the descriptors, for errors.
    source: String,
    unsupported: Arc<UnsupportedFeatures>,
    /// Services whose descriptors can't be used, with the reasons.
    broken: Arc<BTreeMap<String, String>>,
}

/// A method of a [`Schema`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcMethod {
    descriptor: MethodDescriptor,
}

impl Schema {
    /// Compiles `.proto` files. Imports are searched in `import_paths`, then in the folders of the files themselves;
    /// the protos that come with protobuf are always available.
    ///
    /// # Errors
    /// Returns an error if a file or an import is missing, or does not compile (with file and line).
    pub fn from_protos(files: &[PathBuf], import_paths: &[PathBuf]) -> Result<Schema, SchemaError> {
        if files.is_empty() {
            return Err(SchemaError::new("no proto file given"));
        }
        if let Some(path) = import_paths.iter().find(|path| !path.is_dir()) {
            let path = path.display();
            return Err(SchemaError::new(format_args!(
                "import path {path}: not a directory"
            )));
        }
        let mut includes = import_paths.to_vec();
        for file in files {
            if file.is_file() {
                if !import_paths.iter().any(|include| file.starts_with(include)) {
                    includes.push(parent_folder(file));
                }
            } else if !import_paths
                .iter()
                .any(|include| include.join(file).is_file())
            {
                let looked = match import_paths {
                    [] => "an import path (none given)".to_owned(),
                    paths => join_paths(paths),
                };
                return Err(SchemaError::new(format_args!(
                    "proto file {}: no such file, neither here nor in {looked}",
                    file.display()
                )));
            }
        }
        includes.dedup();
        let apart = Rc::new(RefCell::new(UnsupportedFeatures::default()));
        let mut compiler =
            Compiler::with_file_resolver(proto_source::import_resolver(&includes, &apart));
        compiler.open_files(files).map_err(|e| proto_error(&e))?;
        let apart = apart.take();
        Ok(Schema::new(
            compiler.descriptor_pool(),
            join_paths(files),
            apart,
        ))
    }

    /// Reads a compiled `FileDescriptorSet` (`protoc --descriptor_set_out --include_imports`, `buf build`).
    ///
    /// # Errors
    /// Returns an error if the file can't be read, is not a descriptor set, or does not contain its imports.
    pub fn from_descriptor_set(path: &Path) -> Result<Schema, SchemaError> {
        let bad = |problem: String| {
            let path = path.display();
            SchemaError::new(format_args!("descriptor set {path}: {problem}"))
        };
        let bytes = input::read(path).map_err(|e| bad(e.to_string()))?;
        let files = ProtoFile::decode_set(&bytes).map_err(|e| bad(e.to_string()))?;
        if files.is_empty() {
            return Err(bad("holds no file descriptors".to_owned()));
        }
        let assembled = assemble(files, &BTreeMap::new());
        match assembled.broken.first_key_value() {
            Some((file, why)) => {
                let mut problem = format!("file {file}: {why}");
                if !assembled.missing.is_empty() {
                    problem.push_str("; make the set with `protoc --include_imports`");
                }
                Err(bad(problem))
            }
            None => Ok(Schema::new(
                assembled.pool,
                path.display().to_string(),
                assembled.unsupported,
            )),
        }
    }

    /// Adds the files of `more` that this schema does not have. A file is left out if this schema has all its
    /// definitions in a file with another path.
    ///
    /// # Errors
    /// Returns an error if a file of `more` contradicts this schema.
    #[cfg(feature = "targets")]
    pub(super) fn supplement_with(mut self, more: &Schema) -> Result<Schema, SchemaError> {
        for file in more.pool.files() {
            let is_here = |name: &str| self.pool.get_file_by_name(name).is_some();
            let mut messages = file.messages();
            let is_known = is_here(file.name())
                || file.messages().len() > 0
                    && messages.all(|m| self.pool.get_message_by_name(m.full_name()).is_some())
                    && (file.services())
                        .all(|s| self.pool.get_service_by_name(s.full_name()).is_some());
            if is_known {
                continue;
            }
            let mut descriptor = file.file_descriptor_proto().clone();
            descriptors::remove_missing_imports(&mut descriptor, &self.pool);
            self.pool
                .add_file_descriptor_proto(descriptor)
                .map_err(|e| {
                    let (name, of) = (file.name(), &self.source);
                    SchemaError::new(format_args!("{name} contradicts {of}: {e:?}"))
                })?;
        }
        let mut apart = UnsupportedFeatures::clone(&self.unsupported);
        apart
            .closed_enums
            .extend(more.unsupported.closed_enums.iter().cloned());
        apart
            .unverified_strings
            .extend(more.unsupported.unverified_strings.iter().cloned());
        let broken = more
            .broken
            .iter()
            .map(|(name, why)| (name.clone(), why.clone()));
        Arc::make_mut(&mut self.broken).extend(broken);
        self.source = format!("{} and {}", self.source, more.source);
        self.unsupported = Arc::new(apart);
        Ok(self)
    }

    fn new(pool: DescriptorPool, source: String, mut apart: UnsupportedFeatures) -> Schema {
        let of_proto2 = |found: &EnumDescriptor| found.parent_file().syntax() == Syntax::Proto2;
        let enums = pool.all_enums().filter(of_proto2);
        apart
            .closed_enums
            .extend(enums.map(|found| found.full_name().to_owned()));
        Schema {
            pool,
            source,
            unsupported: Arc::new(apart),
            broken: Arc::default(),
        }
    }

    /// Creates a schema from assembled descriptors; `source` names their origin for errors. `broken` lists
    /// services that can't be used, with the reasons.
    #[cfg(feature = "targets")]
    pub(super) fn from_assembled(
        assembled: descriptors::AssembledPool,
        source: String,
        broken: BTreeMap<String, String>,
    ) -> Schema {
        Schema {
            broken: Arc::new(broken),
            ..Schema::new(assembled.pool, source, assembled.unsupported)
        }
    }

    /// Returns the schema of the reference servers `score`, `orders` and `echo`.
    ///
    /// # Errors
    /// Never fails in practice, because the protos are part of this program.
    pub fn builtin() -> Result<Schema, SchemaError> {
        let mut compiler = Compiler::with_file_resolver(BuiltinProtoResolver);
        for (name, _) in BUILTIN_PROTOS {
            compiler.open_file(name).map_err(|e| proto_error(&e))?;
        }
        Ok(Schema::new(
            compiler.descriptor_pool(),
            "the built-in protos".to_owned(),
            UnsupportedFeatures::default(),
        ))
    }

    /// Finds a method by `package.Service/Method`, `/package.Service/Method` or `package.Service.Method`.
    ///
    /// # Errors
    /// Returns an error that suggests similar names if there is no such method.
    pub fn method(&self, name: &str) -> Result<GrpcMethod, SchemaError> {
        let bare = name.strip_prefix('/').unwrap_or(name);
        let split = bare.rsplit_once('/').or_else(|| bare.rsplit_once('.'));
        let found = split.and_then(|(service, method)| {
            self.pool
                .get_service_by_name(service)?
                .methods()
                .find(|candidate| candidate.name() == method)
        });
        if let Some(descriptor) = found {
            return Ok(GrpcMethod { descriptor });
        }
        if let Some((service, _)) = split {
            self.check_service(service)?;
        }
        let all: Vec<String> = self.methods().map(|method| method.path()).collect();
        if split.is_none_or(|(service, method)| service.is_empty() || method.is_empty())
            && similar_names(bare, all.iter()).is_empty()
        {
            return Err(SchemaError::new(format_args!(
                "method {name:?} is not of the form package.Service/Method"
            )));
        }
        Err(SchemaError::new(format_args!(
            "method {bare:?} is not in {}{}",
            self.source,
            format_similar_names(&similar_names(bare, all.iter()))
        )))
    }

    fn check_service(&self, service: &str) -> Result<(), SchemaError> {
        match self.broken.get(service) {
            None => Ok(()),
            Some(problem) => Err(SchemaError::new(format_args!(
                "service {service}: {problem} (described by {})",
                self.source
            ))),
        }
    }

    /// Returns an error with the reason for each service that exists but can't be used.
    pub fn broken_services(&self) -> impl Iterator<Item = SchemaError> + '_ {
        let services = self.broken.keys();
        services.filter_map(|service| self.check_service(service).err())
    }

    /// Returns true if there is a service of this name.
    pub fn has_service(&self, name: &str) -> bool {
        self.pool.get_service_by_name(name).is_some()
    }

    /// Returns all methods of all services, including imported ones.
    pub fn methods(&self) -> impl Iterator<Item = GrpcMethod> + '_ {
        self.pool.services().flat_map(|service| {
            service
                .methods()
                .map(|descriptor| GrpcMethod { descriptor })
                .collect::<Vec<_>>()
        })
    }
}

impl GrpcMethod {
    /// Returns `package.Service/Method`.
    pub fn path(&self) -> String {
        format!(
            "{}/{}",
            self.descriptor.parent_service().full_name(),
            self.descriptor.name()
        )
    }

    /// Returns which sides send a stream of messages.
    pub fn kind(&self) -> MethodKind {
        match (
            self.descriptor.is_client_streaming(),
            self.descriptor.is_server_streaming(),
        ) {
            (false, false) => MethodKind::Unary,
            (false, true) => MethodKind::ServerStreaming,
            (true, false) => MethodKind::ClientStreaming,
            (true, true) => MethodKind::Bidirectional,
        }
    }

    /// Returns the full name of the request message.
    pub fn request_type(&self) -> String {
        self.descriptor.input().full_name().to_owned()
    }

    /// Returns the full name of the response message.
    pub fn response_type(&self) -> String {
        self.descriptor.output().full_name().to_owned()
    }
}

/// A resolver of the built-in protos by name.
struct BuiltinProtoResolver;

impl FileResolver for BuiltinProtoResolver {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        match BUILTIN_PROTOS.iter().find(|(known, _)| *known == name) {
            Some((_, source)) => File::from_source(name, source),
            None => Err(protox::Error::file_not_found(name)),
        }
    }
}

fn parent_folder(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn join_paths(paths: &[PathBuf]) -> String {
    let names: Vec<_> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    names.join(", ")
}

fn proto_error(error: &protox::Error) -> SchemaError {
    let hint = if error.is_file_not_found() {
        "; name the folder that imports are relative to as an import path"
    } else {
        ""
    };
    // Unlike its short form, the compiler's long form begins with file, line and column.
    SchemaError::new(format_args!("proto {error:?}{hint}"))
}

/// Returns at most three of `names` that are similar to `wanted`, best first: those that are equal except for
/// case, that end in `wanted`, or that differ in a few letters.
fn similar_names<'a>(wanted: &str, names: impl Iterator<Item = &'a String>) -> Vec<String> {
    let wanted = wanted.to_lowercase();
    let mut scored: Vec<(f64, &String)> = names
        .filter_map(|name| {
            let lower = name.to_lowercase();
            let tail = lower.strip_suffix(wanted.as_str());
            let score = if lower == wanted {
                2.0
            } else if tail.is_some_and(|before| before.ends_with(['.', '/'])) {
                1.0
            } else {
                strsim::normalized_damerau_levenshtein(&lower, &wanted)
            };
            (score >= MIN_LIKENESS || (score >= 0.5 && wanted.len() <= 8)).then_some((score, name))
        })
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1)));
    let best = scored.first().map_or(0.0, |(score, _)| *score);
    scored
        .into_iter()
        .take_while(|(score, _)| *score >= best - LIKENESS_MARGIN)
        .take(3)
        .map(|(_, name)| name.clone())
        .collect()
}

#[cfg(test)]
mod tests;
