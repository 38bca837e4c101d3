//! Texts of a step that are used as they are written, such as its host or a regular expression. Fields with the names
//! of taken values are reported there: they would be sent or compared with their braces.

use plimsoll_model::rows::template;
use plimsoll_model::spec::Problems;
use toml::{Table, Value};

/// The check of a step's literal texts.
pub(super) struct LiteralTextCheck<'a> {
    /// The names that the steps of the journey bind.
    pub(super) names: &'a [String],
    /// The keys whose texts are templates; see [`StepSection::TEMPLATE_KEYS`](super::StepSection::TEMPLATE_KEYS).
    pub(super) template_keys: &'a [&'a str],
}

impl LiteralTextCheck<'_> {
    /// Reports the fields in literal texts of `table`, whose key in the plan is `prefix`.
    pub(super) fn report_fields(&self, problems: &mut Problems, prefix: &str, table: &Table) {
        for (key, value) in table {
            self.report_fields_of_value(problems, prefix, key, value);
        }
    }

    fn report_fields_of_value(
        &self,
        problems: &mut Problems,
        prefix: &str,
        path: &str,
        value: &Value,
    ) {
        match value {
            Value::String(text) => {
                let field = template::first_field_among(text, self.names);
                let Some(field) = field.filter(|_| !self.is_template(path)) else {
                    return;
                };
                let key = format!("{prefix}.{path}");
                if problems.0.iter().all(|known| known.key != key) {
                    let problem = "fields are not filled in here: write the text itself";
                    problems.add(key, format!("`{field}`: {problem}"));
                }
            }
            Value::Array(items) => {
                for item in items {
                    self.report_fields_of_value(problems, prefix, path, item);
                }
            }
            Value::Table(table) => {
                for (key, value) in table {
                    let path = format!("{path}.{key}");
                    self.report_fields_of_value(problems, prefix, &path, value);
                }
            }
            _ => {}
        }
    }

    fn is_template(&self, path: &str) -> bool {
        let mut keys = self.template_keys.iter();
        keys.any(|key| match key.strip_suffix(".*") {
            Some(table) => path
                .strip_prefix(table)
                .is_some_and(|rest| rest.starts_with('.')),
            None => path == *key,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_reported_outside_templates() {
        let check = LiteralTextCheck {
            names: &["token".to_owned()],
            template_keys: &["path", "until", "until.equals", "headers.*"],
        };
        let table: Table = toml::from_str(
            r#"
path = "/{{token}}"
host = "{{ token }}.example"
body = "{{mustache}}"
send = ["a", { hex = "{{token}}" }, "{{seq}}"]
until = { regex = "^{{token}}", equals = "{{token}}" }
headers = { a = "{{token}}", b = ["{{token}}"] }
"#,
        )
        .unwrap();
        let mut problems = Problems::default();
        problems.add("steps.3.until.regex", "reported before");
        check.report_fields(&mut problems, "steps.3", &table);
        let shown: Vec<String> = problems
            .0
            .iter()
            .map(|problem| problem.to_string())
            .collect();
        let told = "fields are not filled in here: write the text itself";
        assert_eq!(
            shown,
            [
                "`steps.3.until.regex`: reported before".to_owned(),
                format!("`steps.3.host`: `{{{{ token }}}}`: {told}"),
                format!("`steps.3.send.hex`: `{{{{token}}}}`: {told}"),
                format!("`steps.3.send`: `{{{{seq}}}}`: {told}"),
            ]
        );
    }
}
