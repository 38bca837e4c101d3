//! Builds a descriptor pool from file descriptors of a server or another compiler. Each file is checked before the
//! library (prost-reflect) receives it, translated to proto3 if it uses editions, and added after its imports.
//!
//! The library expects descriptors from a compiler, and panics on some that no compiler produces. Input must not cause
//! a panic, so descriptors that might cause one are rejected, and parts that do not affect messages are removed: source
//! positions, defaults, and all options except `packed`, `map_entry` and `allow_alias`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use prost_reflect::prost::{DecodeError, Message as _};
use prost_reflect::prost_types::field_descriptor_proto::{Label, Type};
use prost_reflect::prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumOptions, FieldDescriptorProto, FieldOptions,
    FileDescriptorProto, MessageOptions,
};
use prost_reflect::{DescriptorPool, DynamicMessage, FileDescriptor, ReflectMessage as _};

use super::editions::{UnsupportedFeatures, check_edition, is_map_entry, qualify_name, translate};

/// A `FileDescriptorProto`, with its features if it uses editions.
#[derive(Clone, Debug)]
pub(in crate::grpc) struct ProtoFile {
    file: FileDescriptorProto,
    /// The file with its features, if it uses editions.
    declared: Option<DynamicMessage>,
}

/// A `FileDescriptorSet` whose files are still encoded.
#[derive(Clone, PartialEq, prost::Message)]
struct EncodedFileSet {
    #[prost(bytes = "vec", repeated, tag = "1")]
    files: Vec<Vec<u8>>,
}

/// The result of assembling files.
#[derive(Clone, Debug)]
pub(in crate::grpc) struct AssembledPool {
    pub(in crate::grpc) pool: DescriptorPool,
    pub(super) unsupported: UnsupportedFeatures,
    /// Files that are not in the pool, by name, with the reason.
    pub(in crate::grpc) broken: BTreeMap<String, String>,
    /// Imports that are not available anywhere.
    pub(super) missing: BTreeSet<String>,
}

impl ProtoFile {
    /// Decodes a file.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a `FileDescriptorProto`.
    pub(in crate::grpc) fn decode(bytes: &[u8]) -> Result<ProtoFile, DecodeError> {
        let file = FileDescriptorProto::decode(bytes)?;
        let declared = match file.syntax() {
            "editions" => Some(DynamicMessage::decode(file.descriptor(), bytes)?),
            _ => None,
        };
        Ok(ProtoFile { file, declared })
    }

    /// Decodes the files of a `FileDescriptorSet`.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a `FileDescriptorSet`.
    pub(super) fn decode_set(bytes: &[u8]) -> Result<Vec<ProtoFile>, DecodeError> {
        let files = EncodedFileSet::decode(bytes)?.files;
        files.iter().map(|file| ProtoFile::decode(file)).collect()
    }

    /// Copies a file that comes with the library.
    fn from_library(file: &FileDescriptor) -> ProtoFile {
        ProtoFile {
            file: file.file_descriptor_proto().clone(),
            declared: None,
        }
    }

    /// Returns the file's size, in bytes.
    #[cfg(feature = "targets")]
    pub(in crate::grpc) fn size(&self) -> usize {
        self.file.encoded_len()
    }

    /// Returns the file's name, which imports use.
    pub(in crate::grpc) fn name(&self) -> &str {
        self.file.name()
    }

    pub(in crate::grpc) fn imports(&self) -> &[String] {
        &self.file.dependency
    }

    /// Returns the full names of the services that the file defines.
    pub(in crate::grpc) fn services(&self) -> impl Iterator<Item = String> + '_ {
        let package = self.file.package();
        let services = self.file.service.iter();
        services.map(move |service| qualify_name(package, service.name()))
    }

    /// Returns the full names of the top-level messages, enums and extensions that the file defines.
    #[cfg(feature = "targets")]
    pub(in crate::grpc) fn types(&self) -> impl Iterator<Item = String> + '_ {
        let package = self.file.package();
        let messages = self.file.message_type.iter().map(DescriptorProto::name);
        let enums = self.file.enum_type.iter().map(EnumDescriptorProto::name);
        let extensions = self.file.extension.iter().map(FieldDescriptorProto::name);
        let names = messages.chain(enums).chain(extensions);
        names.map(move |name| qualify_name(package, name))
    }
}

/// Assembles files, in any order. A file that can't be used is left out, and so are the files that need it; a
/// missing import that is not needed is ignored. `absent` gives the reasons why files are missing in `files`, by
/// name.
pub(in crate::grpc) fn assemble(
    files: Vec<ProtoFile>,
    absent: &BTreeMap<String, String>,
) -> AssembledPool {
    let mut done = AssembledPool {
        pool: DescriptorPool::new(),
        unsupported: UnsupportedFeatures::default(),
        broken: BTreeMap::new(),
        missing: BTreeSet::new(),
    };
    let known = DescriptorPool::global();
    let mut by_name: BTreeMap<String, ProtoFile> = BTreeMap::new();
    for mut descriptor in files {
        let name = descriptor.name().to_owned();
        // Files that come with protobuf are replaced by the library's copies of them.
        if let Some(own) = known.get_file_by_name(&name) {
            descriptor.file = own.file_descriptor_proto().clone();
        }
        if by_name.insert(name.clone(), descriptor).is_some() {
            done.broken
                .insert(name, "two files have this name".to_owned());
        }
    }
    add_library_imports(&mut by_name, &known);
    for (name, descriptor) in take_in_import_order(&mut by_name) {
        let mut file = descriptor.file;
        let is_own = known.get_file_by_name(&name).is_some();
        let lost = remove_missing_imports(&mut file, &done.pool);
        let missing = lost
            .iter()
            .filter(|import| !done.broken.contains_key(*import));
        done.missing.extend(missing.cloned());
        let added = match done.broken.remove(&name) {
            Some(why) => Err(why),
            None if is_own => add_to_pool(&mut done.pool, file),
            None => prepare_file(
                &mut file,
                descriptor.declared,
                &known,
                &mut done.unsupported,
            )
            .and_then(|()| add_to_pool(&mut done.pool, file)),
        };
        if let Err(mut why) = added {
            for import in lost {
                let reason = done.broken.get(&import).or_else(|| absent.get(&import));
                let reason = reason.map_or("it is missing", String::as_str);
                why.push_str(&format!("; import {import}: {reason}"));
            }
            done.broken.insert(name, why);
        }
    }
    for name in by_name.into_keys() {
        let why = "it imports itself, directly or indirectly".to_owned();
        done.broken.insert(name, why);
    }
    done
}

/// Adds imports that come with protobuf, which compilers and servers may leave out.
fn add_library_imports(files: &mut BTreeMap<String, ProtoFile>, known: &DescriptorPool) {
    let imports = files.values().flat_map(ProtoFile::imports);
    let mut wanted: Vec<String> = imports.cloned().collect();
    while let Some(name) = wanted.pop() {
        if !files.contains_key(&name)
            && let Some(file) = known.get_file_by_name(&name)
        {
            let file = ProtoFile::from_library(&file);
            wanted.extend(file.imports().iter().cloned());
            files.insert(name, file);
        }
    }
}

fn add_to_pool(pool: &mut DescriptorPool, file: FileDescriptorProto) -> Result<(), String> {
    // The `Debug` form of the error contains the problem and its location; the `Display` form lacks both.
    pool.add_file_descriptor_proto(file)
        .map_err(|e| format!("{e:?}"))
}

/// Removes and returns the files that can be ordered after all their imports. The files that remain are in
/// import cycles, or depend on such files.
fn take_in_import_order(files: &mut BTreeMap<String, ProtoFile>) -> Vec<(String, ProtoFile)> {
    let mut awaited: BTreeMap<String, usize> = BTreeMap::new();
    let mut needed_by: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, descriptor) in files.iter() {
        let present = descriptor
            .imports()
            .iter()
            .filter(|i| files.contains_key(*i));
        let mut count = 0;
        for import in present {
            count += 1;
            needed_by
                .entry(import.clone())
                .or_default()
                .push(name.clone());
        }
        awaited.insert(name.clone(), count);
    }
    let free = awaited.iter().filter(|(_, count)| **count == 0);
    let mut free: VecDeque<String> = free.map(|(name, _)| name.clone()).collect();
    let mut ordered = Vec::new();
    while let Some(name) = free.pop_front() {
        for waiting in needed_by.remove(&name).unwrap_or_default() {
            if let Some(count) = awaited.get_mut(&waiting) {
                *count -= 1;
                if *count == 0 {
                    free.push_back(waiting);
                }
            }
        }
        ordered.extend(files.remove_entry(&name));
    }
    ordered
}

/// Removes the imports that are not in the pool, and returns them.
pub(super) fn remove_missing_imports(
    file: &mut FileDescriptorProto,
    pool: &DescriptorPool,
) -> Vec<String> {
    let mut lost = Vec::new();
    let mut public = Vec::new();
    let mut kept: Vec<String> = Vec::new();
    for (i, import) in std::mem::take(&mut file.dependency).into_iter().enumerate() {
        if pool.get_file_by_name(&import).is_none() {
            lost.push(import);
        } else if !kept.contains(&import) {
            if file.public_dependency.iter().any(|at| *at as usize == i) {
                public.push(kept.len() as i32);
            }
            kept.push(import);
        }
    }
    file.dependency = kept;
    file.public_dependency = public;
    file.weak_dependency.clear();
    lost
}

/// Prepares a file for the library.
fn prepare_file(
    file: &mut FileDescriptorProto,
    declared: Option<DynamicMessage>,
    known: &DescriptorPool,
    apart: &mut UnsupportedFeatures,
) -> Result<(), String> {
    file.source_code_info = None;
    sanitize_file(file, known)?;
    match (file.syntax(), declared) {
        ("" | "proto2" | "proto3", _) => Ok(()),
        ("editions", Some(declared)) => {
            check_edition(&declared)?;
            translate(file, &declared, apart);
            Ok(())
        }
        (other, _) => Err(format!("syntax {other:?} is not supported")),
    }
}

/// Rejects a file on which the library might panic, and removes parts that do not affect messages. `known` contains
/// messages that the file must not redefine with other fields.
///
/// # Errors
/// Returns the reason why the file can't be used.
pub(super) fn sanitize_file(
    file: &mut FileDescriptorProto,
    known: &DescriptorPool,
) -> Result<(), String> {
    file.options = None;
    let package = file.package().to_owned();
    if !package.is_empty() {
        package
            .split('.')
            .try_for_each(|part| check_identifier("package", part))?;
    }
    for message in &mut file.message_type {
        sanitize_message(message, &package, known)?;
    }
    for found in &mut file.enum_type {
        sanitize_enum(found)?;
    }
    for field in &mut file.extension {
        sanitize_field(field)?;
    }
    for service in &mut file.service {
        check_identifier("service", service.name())?;
        service.options = None;
        for method in &mut service.method {
            check_identifier("method", method.name())?;
            method.options = None;
        }
    }
    Ok(())
}

fn sanitize_message(
    message: &mut DescriptorProto,
    scope: &str,
    known: &DescriptorPool,
) -> Result<(), String> {
    check_identifier("message", message.name())?;
    let full = qualify_name(scope, message.name());
    // The well-known messages in `known` have special JSON formats, so prost-reflect relies on their fields.
    if let Some(own) = known.get_message_by_name(&full)
        && !own
            .descriptor_proto()
            .field
            .iter()
            .map(encoding_properties)
            .eq(message.field.iter().map(encoding_properties))
    {
        return Err(format!(
            "{full} is not the message that comes with protobuf"
        ));
    }
    if is_map_entry(message) {
        check_map_entry(message).map_err(|why| format!("map entry {full}: {why}"))?;
    }
    message.options = is_map_entry(message).then(|| MessageOptions {
        map_entry: Some(true),
        ..MessageOptions::default()
    });
    for range in &mut message.extension_range {
        range.options = None;
    }
    for oneof in &mut message.oneof_decl {
        check_identifier("oneof", oneof.name())?;
        oneof.options = None;
    }
    for field in message.field.iter_mut().chain(&mut message.extension) {
        sanitize_field(field)?;
    }
    for nested in &mut message.nested_type {
        sanitize_message(nested, &full, known)?;
    }
    message.enum_type.iter_mut().try_for_each(sanitize_enum)
}

/// Returns the properties of a field that determine its encoding.
fn encoding_properties(field: &FieldDescriptorProto) -> (&str, i32, Label, Type, Option<i32>) {
    (
        field.name(),
        field.number(),
        field.label(),
        field.r#type(),
        field.oneof_index,
    )
}

fn check_map_entry(entry: &DescriptorProto) -> Result<(), &'static str> {
    let [key, value] = &entry.field[..] else {
        return Err("it has other fields than a key and a value");
    };
    if (key.number(), value.number()) != (1, 2) {
        return Err("its key is not field 1, or its value not field 2");
    }
    let is_plain = |field: &FieldDescriptorProto| {
        field.label() == Label::Optional && field.oneof_index.is_none()
    };
    if !is_plain(key) || !is_plain(value) {
        return Err("its key or its value is repeated, required or in a oneof");
    }
    let unfit = [
        Type::Double,
        Type::Float,
        Type::Bytes,
        Type::Group,
        Type::Message,
        Type::Enum,
    ];
    if !key.type_name().is_empty() || unfit.contains(&key.r#type()) {
        return Err("its key has a type that map keys can't have");
    }
    Ok(())
}

fn sanitize_field(field: &mut FieldDescriptorProto) -> Result<(), String> {
    check_identifier("field", field.name())?;
    field.default_value = None;
    let packed = field.options.as_ref().and_then(|options| options.packed);
    field.options = packed.map(|packed| FieldOptions {
        packed: Some(packed),
        ..FieldOptions::default()
    });
    Ok(())
}

fn sanitize_enum(found: &mut EnumDescriptorProto) -> Result<(), String> {
    check_identifier("enum", found.name())?;
    let allow_alias = found.options.take().and_then(|options| {
        // A file parsed from .proto source still has its options as `uninterpreted_option`.
        let mut written = options.uninterpreted_option.into_iter();
        let written =
            written.find(|o| matches!(&o.name[..], [name] if name.name_part == "allow_alias"));
        let written = written.map(|option| option.identifier_value() == "true");
        options.allow_alias.or(written)
    });
    found.options = allow_alias.map(|allow| EnumOptions {
        allow_alias: Some(allow),
        ..EnumOptions::default()
    });
    for value in &mut found.value {
        check_identifier("enum value", value.name())?;
        value.options = None;
    }
    Ok(())
}

fn check_identifier(what: &str, name: &str) -> Result<(), String> {
    let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    if name.starts_with(is_letter) && name.chars().all(|c| is_letter(c) || c.is_ascii_digit()) {
        return Ok(());
    }
    Err(format!("{name:?} is not a valid {what} name"))
}
