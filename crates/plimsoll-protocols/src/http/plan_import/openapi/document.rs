//! Reads a description of a service, and follows its references.

use serde_json::Value;

/// The maximum number of references that are followed for one value, which also ends cycles.
const MAX_REFERENCES: usize = 16;
/// The methods of operations (OpenAPI 3.1, 4.8.9).
const OPERATION_METHODS: [&str; 8] = [
    "get", "put", "post", "delete", "options", "head", "patch", "trace",
];
/// The maximum number of operations that an error lists.
const MAX_LISTED_OPERATIONS: usize = 10;

/// A description of a service (OpenAPI).
pub(super) struct ServiceDescription<'a> {
    root: &'a Value,
}

/// An operation of a service.
#[derive(Clone, Copy)]
pub(super) struct ServiceOperation<'a> {
    pub(super) path: &'a str,
    /// The method in lower case.
    pub(super) method: &'a str,
    /// The path item object; its keys apply to all operations of the path.
    pub(super) item: &'a Value,
    pub(super) value: &'a Value,
}

impl<'a> ServiceOperation<'a> {
    /// Returns the operation's id, or method and path if it has none.
    pub(super) fn name(&self) -> String {
        match self.id() {
            Some(id) if !id.trim().is_empty() && !id.chars().any(char::is_control) => id.to_owned(),
            _ => self.method_and_path(),
        }
    }

    pub(super) fn summary(&self) -> Option<&'a str> {
        self.value.get("summary").and_then(Value::as_str)
    }

    fn id(&self) -> Option<&'a str> {
        self.value.get("operationId").and_then(Value::as_str)
    }

    fn method_and_path(&self) -> String {
        format!("{} {}", self.method.to_ascii_uppercase(), self.path)
    }

    fn is_deprecated(&self) -> bool {
        self.value.get("deprecated").and_then(Value::as_bool) == Some(true)
    }
}

impl<'a> ServiceDescription<'a> {
    /// # Errors
    /// Returns an error if the version is not 3.0, 3.1 or 3.2.
    pub(super) fn new(root: &'a Value) -> Result<ServiceDescription<'a>, String> {
        // An unquoted `3.1` is a number in YAML.
        let text = |key: &str| match root.get(key)? {
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        };
        match (text("openapi"), text("swagger")) {
            (Some(version), _) if version.starts_with("3.") => Ok(ServiceDescription { root }),
            (Some(version), _) => Err(format!(
                "openapi: `{version}` is not read, only 3.0 and 3.1"
            )),
            (None, Some(version)) => Err(format!(
                "swagger: version {version} is not read, only OpenAPI 3.0 and 3.1: convert it, such as with swagger2openapi"
            )),
            (None, None) => Err(
                "openapi: missing: a description begins with its version, such as 3.1.0".to_owned(),
            ),
        }
    }

    pub(super) fn title(&self) -> &'a str {
        let title = self.root.pointer("/info/title").and_then(Value::as_str);
        title.unwrap_or("a service")
    }

    /// Returns the URL of the first server, with the default values of its variables.
    ///
    /// # Errors
    /// Returns an error if the description has no server, or the server has no host.
    pub(super) fn server_url(&self) -> Result<String, String> {
        let server = self.root.pointer("/servers/0");
        let url = server
            .and_then(|server| server.get("url"))
            .and_then(Value::as_str);
        let mut url = url.unwrap_or_default().to_owned();
        let variables = server
            .and_then(|server| server.get("variables"))
            .and_then(Value::as_object);
        for (name, variable) in variables.into_iter().flatten() {
            if let Some(default) = variable.get("default").and_then(Value::as_str) {
                url = url.replace(&format!("{{{name}}}"), default);
            }
        }
        if url.contains("://") {
            return Ok(url);
        }
        let path = if url == "/" { "" } else { &url };
        Err(format!(
            "servers: no URL with a host: add --origin, such as --origin http://127.0.0.1:8000{path}"
        ))
    }

    /// Returns the value, or the referenced value if it is a reference.
    pub(super) fn follow_reference(&self, value: &'a Value) -> &'a Value {
        let mut value = value;
        for _ in 0..MAX_REFERENCES {
            let Some(reference) = value.get("$ref").and_then(Value::as_str) else {
                return value;
            };
            let found = reference
                .strip_prefix('#')
                .and_then(|pointer| self.root.pointer(pointer));
            match found {
                Some(found) => value = found,
                None => return value,
            }
        }
        &Value::Null
    }

    /// Returns a copy of the value, or of the referenced value if it is a reference. Unlike for
    /// [`Self::follow_reference`], `value` need not be part of the document.
    pub(super) fn resolve_reference(&self, value: &Value) -> Value {
        match value.get("$ref").and_then(Value::as_str) {
            Some(reference) => {
                let found = reference
                    .strip_prefix('#')
                    .and_then(|pointer| self.root.pointer(pointer));
                found.map_or(Value::Null, |found| self.follow_reference(found).clone())
            }
            None => value.clone(),
        }
    }

    /// Returns the operations with these ids; without ids, all GET operations that are not deprecated.
    ///
    /// # Errors
    /// Returns an error if an id is unknown, or no operation is left.
    pub(super) fn operations(&self, ids: &[String]) -> Result<Vec<ServiceOperation<'a>>, String> {
        let mut all = Vec::new();
        let paths = self.root.get("paths").and_then(Value::as_object);
        for (path, item) in paths.into_iter().flatten() {
            let item = self.follow_reference(item);
            let methods = OPERATION_METHODS.iter();
            all.extend(methods.filter_map(|method| {
                let value = item.get(*method).filter(|value| value.is_object())?;
                Some(ServiceOperation {
                    path,
                    method,
                    item,
                    value,
                })
            }));
        }
        if ids.is_empty() {
            let mut gets = all.clone();
            gets.retain(|operation| operation.method == "get" && !operation.is_deprecated());
            return match &*gets {
                [] => Err(format!(
                    "paths: no operation of GET: choose others by --operation: it has {}",
                    list_operations(&all)
                )),
                _ => Ok(gets),
            };
        }
        let found = ids.iter().map(|id| {
            let is_it = |operation: &&ServiceOperation<'_>| {
                operation.id() == Some(id) || operation.method_and_path() == *id
            };
            all.iter().find(is_it).copied().ok_or_else(|| {
                format!(
                    "--operation {id}: no such operation: it has {}",
                    list_operations(&all)
                )
            })
        });
        found.collect()
    }

    /// Returns the schemes of the operation's first security requirement; empty if it needs no credentials.
    pub(super) fn security_schemes(&self, operation: &ServiceOperation<'a>) -> Vec<&'a Value> {
        let own = operation
            .value
            .get("security")
            .or(self.root.get("security"));
        let requirements = own.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let is_open = |requirement: &&Value| {
            requirement
                .as_object()
                .is_some_and(serde_json::Map::is_empty)
        };
        if requirements.iter().any(|requirement| is_open(&requirement)) {
            return Vec::new();
        }
        let names = requirements.first().and_then(Value::as_object);
        let schemes = self.root.pointer("/components/securitySchemes");
        let found = names.into_iter().flat_map(serde_json::Map::keys);
        found
            .filter_map(|name| Some(self.follow_reference(schemes?.get(name)?)))
            .collect()
    }

    /// Returns the content type and the media type object of an operation's body; JSON is preferred.
    pub(super) fn request_body(
        &self,
        operation: &ServiceOperation<'a>,
    ) -> Option<(&'a str, &'a Value)> {
        let body = self.follow_reference(operation.value.get("requestBody")?);
        let content = body.get("content")?.as_object()?;
        let json = content.iter().find(|(kind, _)| kind.contains("json"));
        let (kind, media) = json.or_else(|| content.iter().next())?;
        Some((kind, media))
    }

    /// Returns the example of a parameter, a media object or a schema.
    pub(super) fn find_example(&self, value: &Value) -> Option<Value> {
        if let Some(example) = value.get("example") {
            return Some(example.clone());
        }
        match value.get("examples") {
            // Examples of parameters and media types are an object, by name.
            Some(Value::Object(examples)) => {
                let examples = examples
                    .values()
                    .map(|example| self.resolve_reference(example));
                let mut values = examples.filter_map(|example| example.get("value").cloned());
                values.next()
            }
            // Examples of schemas are a list.
            Some(Value::Array(examples)) => examples.first().cloned(),
            _ => None,
        }
    }

    /// Returns the value that a schema specifies: an example, the default, or the first of its enumerated values.
    pub(super) fn schema_value(&self, schema: &Value) -> Option<Value> {
        let first = || schema.get("enum")?.as_array()?.first();
        let default = schema.get("default").filter(|value| !value.is_null());
        let named = self.find_example(schema);
        named.or_else(|| default.or(schema.get("const")).or_else(first).cloned())
    }

    /// Returns the value that a parameter or its schema specifies.
    pub(super) fn parameter_value(&self, parameter: &Value) -> Option<Value> {
        let in_schema = || {
            let schema = self.resolve_reference(parameter.get("schema")?);
            let items = schema
                .get("items")
                .map(|items| self.resolve_reference(items));
            let item = || Some(Value::Array(vec![self.schema_value(&items?)?]));
            self.schema_value(&schema).or_else(item)
        };
        let in_content = || {
            let content = parameter.get("content")?.as_object()?;
            let value = self.find_example(content.values().next()?)?;
            Some(Value::String(value.to_string()))
        };
        self.find_example(parameter)
            .or_else(in_schema)
            .or_else(in_content)
    }
}

fn list_operations(operations: &[ServiceOperation<'_>]) -> String {
    let names: Vec<String> = operations
        .iter()
        .take(MAX_LISTED_OPERATIONS)
        .map(ServiceOperation::name)
        .collect();
    match operations.len().saturating_sub(MAX_LISTED_OPERATIONS) {
        0 if names.is_empty() => "none".to_owned(),
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}
