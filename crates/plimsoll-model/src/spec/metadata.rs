//! Resolves metadata and header fields of a call. A value with template fields is checked for every row of the plan's
//! data, so that every call has a value that HTTP/2 can carry.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;

use super::protocol;
use super::{MetadataSpec, Problems, ResolveContext, Spec, is_valid_field_value};
use crate::formats::base64_text::decode_base64;
use crate::formats::redaction::{self, is_secret_field_name, is_secret_field_value};
use crate::plan::RequestFields;
use crate::rows::template::{
    self, CommandOutput, FieldScope, FieldSource, MetadataField, RowColumn, Rows, Template,
    TemplatePart, VariationSettings, VaryingMetadata,
};

/// Minimum refresh interval; more frequent changes need another mechanism.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// The first slot number of random fields in metadata; slots of messages have lower numbers.
const FIRST_METADATA_SLOT: u32 = 1 << 24;

/// The rules for the names of a table of fields.
#[derive(Clone, Copy, Debug)]
pub struct FieldNameRules {
    /// The key of the table.
    pub key: &'static str,
    /// Whether names that end in `-bin` have binary values, which the plan contains in base64.
    pub binary: bool,
    /// Checks a lower-case name.
    pub check: fn(&str) -> Result<(), &'static str>,
}

impl FieldNameRules {
    fn is_binary_name(&self, name: &str) -> bool {
        self.binary && name.ends_with("-bin")
    }

    fn check(&self, name: &str) -> Result<(), &'static str> {
        (self.check)(name)?;
        // A protocol may decode values of names with a certain suffix as binary, as gRPC does for `-bin`.
        let others = protocol::all().filter_map(|protocol| protocol.binary_name_suffix);
        let mut others = others.filter(|(end, _)| !self.binary && name.ends_with(end));
        others.next().map_or(Ok(()), |(_, problem)| Err(problem))
    }
}

/// The rows that a plan refers to.
#[derive(Clone, Copy, Debug)]
pub enum PlanRows<'a> {
    /// The plan has no rows.
    Nothing,
    /// The rows have a problem, which has been reported.
    Unreadable,
    /// The rows were read.
    Rows(&'a Rows),
}

impl<'a> PlanRows<'a> {
    /// Wraps the `rows` of `spec`, if they could be read.
    pub fn from_spec(rows: Option<&'a Rows>, spec: &Spec) -> PlanRows<'a> {
        match rows {
            Some(rows) => PlanRows::Rows(rows),
            None if spec.rows.is_some() => PlanRows::Unreadable,
            None => PlanRows::Nothing,
        }
    }
}

/// The rows and the names that values of fields may refer to.
#[derive(Clone, Copy, Debug)]
pub struct MetadataScope<'a> {
    /// The plan's rows.
    pub rows: PlanRows<'a>,
    /// The names of values that earlier steps of a journey take from answers.
    pub taken: &'a [String],
}

impl<'a> From<PlanRows<'a>> for MetadataScope<'a> {
    fn from(rows: PlanRows<'a>) -> MetadataScope<'a> {
        MetadataScope { rows, taken: &[] }
    }
}

/// The resolved metadata of a call.
#[derive(Clone, Debug, Default)]
pub struct CallMetadata {
    /// Entries whose values are the same for every call.
    pub constant: Vec<(String, String)>,
    /// Entries whose values differ from call to call.
    pub varying: Vec<MetadataField>,
    /// Whether a value refers to rows, even if the reference is invalid.
    pub uses_rows: bool,
}

impl CallMetadata {
    /// Converts to the header fields of requests.
    pub fn into_request_fields(self, variation: &VariationSettings) -> RequestFields {
        RequestFields {
            constant: self.constant,
            varying: (!self.varying.is_empty()).then(|| VaryingMetadata {
                variation: variation.clone(),
                fields: self.varying,
            }),
        }
    }
}

/// A value that is the same for all calls.
#[derive(Debug)]
pub enum CallIndependentValue {
    /// Constant throughout the run.
    Constant(String),
    /// Refreshed during the run.
    Live(CommandOutput),
}

/// A parsed entry.
#[derive(Default)]
struct ParsedField {
    /// Whether the entry refers to rows, even if the reference is invalid.
    uses_rows: bool,
    /// The field; `None`: a problem has been reported, or it needs rows that could not be read.
    field: Option<MetadataField>,
}

impl Problems {
    /// Resolves the value at `key`, which is the same for all calls. The value has no field name, so the rules for
    /// names don't apply.
    pub fn resolve_call_independent_value(
        &mut self,
        key: &str,
        spec: &MetadataSpec,
        surroundings: &dyn ResolveContext,
    ) -> Option<CallIndependentValue> {
        self.ok_or_report(key, resolve_value(spec, surroundings))
    }

    /// Resolves the header fields or metadata of a section; invalid ones are reported and left out.
    pub fn resolve_metadata<'a>(
        &mut self,
        names: &FieldNameRules,
        entries: &BTreeMap<String, MetadataSpec>,
        scope: impl Into<MetadataScope<'a>>,
        surroundings: &dyn ResolveContext,
    ) -> CallMetadata {
        let scope = scope.into();
        let mut metadata = CallMetadata::default();
        let mut slots = FIRST_METADATA_SLOT;
        for (name, spec) in entries {
            let mut fields = Vec::new();
            for one in spec.values() {
                let field = self.resolve_field(names, (name, one), scope, surroundings, &mut slots);
                metadata.uses_rows |= field.uses_rows;
                fields.extend(field.field);
            }
            // Constant fields are sent before varying ones, so values of the same name keep their order only if all of
            // them are constant, or none is.
            let constant = |field: &MetadataField| {
                let text = field.template.constant_text()?;
                Some((field.name.clone(), text.to_owned()))
            };
            match fields.iter().map(constant).collect::<Option<Vec<_>>>() {
                Some(constants) => metadata.constant.extend(constants),
                None => metadata.varying.append(&mut fields),
            }
        }
        metadata
    }

    /// Resolves one entry whose value is not a list.
    fn resolve_field(
        &mut self,
        names: &FieldNameRules,
        (name, spec): (&str, &MetadataSpec),
        scope: MetadataScope<'_>,
        surroundings: &dyn ResolveContext,
        slots: &mut u32,
    ) -> ParsedField {
        let mut parsed = ParsedField::default();
        let key = format!("{}.{name}", names.key);
        let lower = name.to_ascii_lowercase();
        if let Err(problem) = names.check(&lower) {
            self.add(&*key, problem);
            return parsed;
        }
        if names.is_binary_name(&lower) && matches!(spec, MetadataSpec::Command { .. }) {
            self.add(
                &*key,
                "names that end in -bin hold binary values, which a command can't supply: use another name",
            );
            return parsed;
        }
        let typed = match self.ok_or_report(&key, resolve_value(spec, surroundings)) {
            None => return parsed,
            Some(CallIndependentValue::Live(value)) => {
                parsed.field = Some(MetadataField {
                    name: lower,
                    typed: String::new(),
                    template: Template::from_command_output(value),
                });
                return parsed;
            }
            Some(CallIndependentValue::Constant(text)) => text,
        };
        // The server may be asked something before the plan is resolved.
        if is_secret_field_name(&lower) || is_secret_field_value(&typed) {
            redaction::remember_secret(&typed);
        }
        parsed.uses_rows = template::uses_rows(&typed);
        let is_typed = matches!(spec, MetadataSpec::Text(_));
        let template = match parse_template(&typed, is_typed, slots, scope) {
            Ok(Some(template)) => template,
            Ok(None) => return parsed,
            Err(problem) => {
                self.add(&*key, problem);
                return parsed;
            }
        };
        match check_template(names, &lower, &template, scope.rows) {
            Err(problem) => self.add(&*key, problem),
            Ok(()) => {
                parsed.field = Some(MetadataField {
                    name: lower,
                    typed,
                    template,
                });
            }
        }
        parsed
    }

    /// Adds a `traceparent` for each call if `spec` asks for it.
    pub fn add_traceparent(
        &mut self,
        names: &FieldNameRules,
        spec: &Spec,
        metadata: &mut CallMetadata,
    ) {
        if spec.traceparent != Some(true) {
            return;
        }
        let name = MetadataField::TRACEPARENT;
        let constant = metadata.constant.iter().map(|(name, _)| name);
        let mut given = constant.chain(metadata.varying.iter().map(|field| &field.name));
        if given.any(|given| given == name) {
            self.add(
                format!("{}.{name}", names.key),
                "can't be combined with traceparent = true, which makes one for each call: use one of the two",
            );
            return;
        }
        metadata.varying.push(MetadataField::new_traceparent());
    }
}

fn resolve_value(
    spec: &MetadataSpec,
    surroundings: &dyn ResolveContext,
) -> Result<CallIndependentValue, String> {
    let text = match spec {
        MetadataSpec::Text(text) => text.clone(),
        MetadataSpec::Several(_) => return Err("a list, but only one value is allowed here".to_owned()),
        MetadataSpec::Env(variable) => surroundings
            .env_variable(variable)
            .ok_or_else(|| {
                let is_name = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
                let begins = variable.starts_with(|c: char| !c.is_ascii_digit());
                if begins && variable.bytes().all(is_name) {
                    format!("the environment variable {variable} is not set")
                } else {
                    format!(
                        "`${variable}` is not a valid name of an environment variable: put the value into a variable, such as $VALUE"
                    )
                }
            })?,
        MetadataSpec::File(path) => surroundings
            .read(path)
            .map(|text| text.trim_end_matches(['\r', '\n']).to_owned())
            .map_err(|e| format!("can't read {}: {e}", path.display()))?,
        MetadataSpec::Basic(pair) => basic_auth_value(pair, surroundings)?,
        MetadataSpec::Command { command, refresh } => {
            let refresh = refresh.map(|period| period.0);
            if refresh.is_some_and(|every| every < MIN_REFRESH_INTERVAL) {
                return Err("refresh: too short, use 1s or longer".to_owned());
            }
            let printed = surroundings.run_command(command)?;
            // The output may be secret, so messages don't contain it.
            let value = CommandOutput::new(command, refresh, &printed);
            return value
                .map(CallIndependentValue::Live)
                .map_err(|problem| format!("`{command}`: {problem}"));
        }
    };
    Ok(CallIndependentValue::Constant(text))
}

/// Returns the value of Basic authentication for `USER:PASSWORD` (RFC 7617 §2). Messages do not contain the password.
fn basic_auth_value(pair: &str, surroundings: &dyn ResolveContext) -> Result<String, String> {
    let (user, typed) = pair
        .split_once(':')
        .ok_or("no colon: write USER:PASSWORD, or USER:$NAME for a password of the environment")?;
    let password = match MetadataSpec::from_flag(typed) {
        MetadataSpec::Env(variable) => surroundings.env_variable(&variable).ok_or(
            "a password that begins with $ is taken from the environment, and its variable is not set; a plain $ is written $$",
        )?,
        MetadataSpec::Text(password) => password,
        _ => String::new(),
    };
    if template::has_fields(user) || template::has_fields(typed) {
        return Err(
            "fields are not filled in here: put USER:PASSWORD in base64 into a column, and write authorization = \"Basic {{row.NAME}}\""
                .to_owned(),
        );
    }
    let pair = format!("{user}:{password}");
    if pair.chars().any(char::is_control) {
        return Err(
            "a control character, such as a line end: user and password have none".to_owned(),
        );
    }
    let encoded = base64::prelude::BASE64_STANDARD.encode(pair);
    Ok(format!("Basic {encoded}"))
}

/// Parses a value. `is_typed`: the value is literal text of the plan; otherwise it may be secret. `None`: the value
/// needs rows that could not be read.
fn parse_template(
    text: &str,
    is_typed: bool,
    slots: &mut u32,
    scope: MetadataScope<'_>,
) -> Result<Option<Template>, String> {
    let rows = match scope.rows {
        PlanRows::Rows(rows) => Some(rows),
        PlanRows::Unreadable if template::uses_rows(text) => return Ok(None),
        PlanRows::Unreadable | PlanRows::Nothing => None,
    };
    let taken = scope.taken;
    match Template::parse(
        text,
        slots,
        FieldScope {
            rows,
            captured: taken,
        },
    ) {
        Ok(template) => Ok(Some(template)),
        Err(e) if is_typed || template::first_field(text).is_some() => Err(e),
        Err(_) => Err("its braces contain no field: two plain braces are written {{{{".to_owned()),
    }
}

const UNPRINTABLE_METADATA_MESSAGE: &str =
    "not a metadata value: use printable ASCII without leading or trailing spaces";
const UNPRINTABLE_FIELD_MESSAGE: &str =
    "not a field value: use printable ASCII without leading or trailing spaces";
const INVALID_BASE64_MESSAGE: &str =
    "not base64: the value of a name that ends in -bin is binary, typed in base64";

/// Checks that `template` gives a valid value for every call. Values may be secret, so messages don't contain them.
fn check_template(
    names: &FieldNameRules,
    name: &str,
    template: &Template,
    rows: PlanRows<'_>,
) -> Result<(), String> {
    let is_binary = names.is_binary_name(name);
    let in_words = |problem: &'static str| match problem {
        UNPRINTABLE_METADATA_MESSAGE if !names.binary => UNPRINTABLE_FIELD_MESSAGE,
        problem => problem,
    };
    let fields = || template.parts().iter().filter_map(TemplatePart::field);
    if fields().any(|field| matches!(field.source, FieldSource::Message)) {
        return Err(
            "{{message}} has no value here: metadata are sent before the first message".to_owned(),
        );
    }
    let columns = fields().filter_map(|field| match &field.source {
        FieldSource::Row(column) => Some(&**column),
        _ => None,
    });
    let columns: Vec<&RowColumn> = columns.collect();
    let PlanRows::Rows(rows) = rows else {
        return check_row(is_binary, template, &[], 0)
            .map_err(|(problem, _)| in_words(problem).to_owned());
    };
    let rows_to_check = if columns.is_empty() { 1 } else { rows.count() };
    for row in 0..rows_to_check {
        check_row(is_binary, template, &columns, row).map_err(
            |(problem, column)| match column {
                Some(column) => format!(
                    "{}, row {}, column {column:?}: {}",
                    rows.file(),
                    row + 1,
                    in_words(problem)
                ),
                None => in_words(problem).to_owned(),
            },
        )?;
    }
    Ok(())
}

/// Checks the value with the columns of one row. An error contains the column that causes it, if any.
fn check_row<'a>(
    is_binary: bool,
    template: &Template,
    columns: &[&'a RowColumn],
    row: usize,
) -> Result<(), (&'static str, Option<&'a str>)> {
    let bad = |problem, column: Option<&&'a RowColumn>| {
        Err((problem, column.map(|column| column.name.as_str())))
    };
    if is_binary {
        let source = template.sole_field().map(|field| &field.source);
        if let Some(text) = template.constant_text() {
            return if is_base64(text) {
                Ok(())
            } else {
                bad(INVALID_BASE64_MESSAGE, None)
            };
        }
        return match (source, columns) {
            // A journey checks a taken value before it sends it.
            (Some(FieldSource::Uuid | FieldSource::Captured(_)), _) => Ok(()),
            (Some(FieldSource::Row(_)), [column]) if is_base64(&column.value(row)) => Ok(()),
            (Some(FieldSource::Row(_)), _) => bad(INVALID_BASE64_MESSAGE, columns.first()),
            _ => bad(
                "the value of a name that ends in -bin is one field alone: {{row.NAME}}, a column in base64, {{uuid}}, its sixteen bytes, or in a journey a taken value in base64",
                None,
            ),
        };
    }
    let is_ascii = |text: &str| text.bytes().all(|b| (0x20..=0x7e).contains(&b));
    if let Some(column) = columns.iter().find(|c| !is_ascii(&c.value(row))) {
        return bad(UNPRINTABLE_METADATA_MESSAGE, Some(column));
    }
    // Blanks at the ends can only be checked in the whole value, since a column's blanks may be in its middle.
    let mut whole = String::new();
    for part in template.parts() {
        match part {
            TemplatePart::Text(text) => whole.push_str(text),
            TemplatePart::Field(field) => match &field.source {
                FieldSource::Row(column) => whole.push_str(&column.value(row)),
                _ => whole.push('0'),
            },
        }
    }
    if is_valid_field_value(&whole) {
        Ok(())
    } else {
        let has_blank = |c: &&&'a RowColumn| {
            let value = c.value(row);
            value.trim() != value
        };
        bad(UNPRINTABLE_METADATA_MESSAGE, columns.iter().find(has_blank))
    }
}

fn is_base64(text: &str) -> bool {
    decode_base64(text).is_some()
}
