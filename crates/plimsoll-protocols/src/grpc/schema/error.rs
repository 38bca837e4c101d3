//! Why a schema, a method or a message can't be used, with what would be right.

use std::io;
use std::path::PathBuf;

/// Why a schema, a method or a message can't be used.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    #[error("no proto file given")]
    NoFiles,
    #[error("proto file {}: no such file, neither here nor in {looked}", path.display())]
    ProtoMissing { path: PathBuf, looked: String },
    #[error("import path {}: not a directory", path.display())]
    ImportPath { path: PathBuf },
    /// The compiler's words, which begin with file, line and column.
    #[error("proto {detail}{hint}")]
    Proto { detail: String, hint: &'static str },
    #[error("descriptor set {}: {source}", path.display())]
    DescriptorSetRead { path: PathBuf, source: io::Error },
    #[error("descriptor set {}: {problem}", path.display())]
    DescriptorSet { path: PathBuf, problem: String },
    #[error("method {name:?} is not of the form package.Service/Method")]
    MethodForm { name: String },
    #[error("method {name:?} is not in {source_name}{}", nearest(near))]
    NoMethod {
        name: String,
        source_name: String,
        near: Vec<String>,
    },
    #[error("service {service}: {problem}, as {source_name} describes it")]
    Broken {
        service: String,
        problem: String,
        source_name: String,
    },
    #[error(
        "{name:?} is neither a service, a method, a message nor an enum of {source_name}{}",
        nearest(near)
    )]
    NoName {
        name: String,
        source_name: String,
        near: Vec<String>,
    },
    #[error("message of {message}: not valid JSON: {problem}")]
    Json { message: String, problem: String },
    #[error(
        "message of {message}: no field {path:?}{}",
        nearest_or_all(near, fields)
    )]
    NoField {
        message: String,
        /// From the message's top, as `legs[2].price`.
        path: String,
        near: Vec<String>,
        /// The existing ones, with their types.
        fields: String,
    },
    #[error("message of {message}: {}{problem}{}", at(path), instead(right))]
    Value {
        message: String,
        path: String,
        problem: String,
        /// What belongs there; empty where that is not known.
        right: String,
    },
    #[error("message of {message}: field {path:?} is required and not there: give it a {kind}")]
    Missing {
        message: String,
        path: String,
        /// Its type, as a `.proto` file writes it.
        kind: String,
    },
    #[error("{source_name}: not a {message}: {problem}")]
    Binary {
        source_name: String,
        message: String,
        problem: String,
    },
    #[error("message {number} of the list: {error}")]
    Listed {
        /// From 1.
        number: usize,
        error: Box<SchemaError>,
    },
    #[error("{file}, row {row}, column {column:?}: {problem}")]
    Row {
        file: String,
        /// From 1, the line of names not counted.
        row: usize,
        column: String,
        problem: String,
    },
    #[error("answer of {message}: {problem}")]
    Decode { message: String, problem: String },
}

fn nearest(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => format!("; did you mean {one}?"),
        several => format!("; nearest are {}", several.join(", ")),
    }
}

fn nearest_or_all(near: &[String], fields: &str) -> String {
    match near {
        [] => format!("; there is {fields}"),
        near => nearest(near),
    }
}

fn instead(right: &str) -> String {
    match right {
        "" => String::new(),
        right => format!("; write {right}"),
    }
}

fn at(path: &str) -> String {
    if path == "." {
        String::new()
    } else {
        format!("field {path:?}: ")
    }
}
