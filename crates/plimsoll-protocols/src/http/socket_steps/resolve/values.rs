//! Resolves and checks single values of a step over a WebSocket.

use plimsoll_model::rows::template::{self, FieldSource, Template, TemplatePart};

use super::super::call::is_token_byte;
use super::super::section::TokensSpec;
use crate::http::payload::TemplateContext;

/// Resolves the number of tokens to await; `None` if only their `done` has it.
///
/// # Errors
/// Returns a message if it is not a number above 0.
pub(super) fn resolve_token_number(
    typed: &TokensSpec,
    texts: &mut TemplateContext<'_>,
) -> Result<Option<Template>, String> {
    let text = match typed {
        TokensSpec::Any(true) => return Ok(None),
        TokensSpec::Any(false) => return Err("false: leave it out".to_owned()),
        TokensSpec::Number(number) => number.to_string(),
        TokensSpec::Text(text) => text.clone(),
    };
    texts.uses_rows |= template::uses_rows(&text);
    let number = Template::parse(&text, texts.slots, texts.scope)?;
    match number.constant_text().map(str::parse::<u64>) {
        None | Some(Ok(1..)) => Ok(Some(number)),
        Some(Ok(0)) => {
            Err("0: a query without tokens is a failure: write 1 or more, or true".to_owned())
        }
        Some(Err(_)) => Err(format!(
            "`{text}` is not a number of tokens: write one, a field such as \"{{{{tokens}}}}\", or true"
        )),
    }
}

/// Checks a subprotocol's name as far as it is known before the load. The name may be secret, so the message does not
/// show it.
pub(super) fn check_subprotocol(name: Template) -> Result<Template, String> {
    let is_token = |text: &str| text.bytes().all(is_token_byte);
    let is_good = name.parts().iter().all(|part| match part {
        TemplatePart::Text(text) => is_token(text),
        TemplatePart::Field(field) => match &field.source {
            FieldSource::Row(column) => column.values().all(|value| is_token(&value)),
            _ => true,
        },
    });
    if is_good && !name.parts().is_empty() {
        Ok(name)
    } else {
        Err(
            "not the name of a subprotocol (RFC 6455, 4.1): use letters, digits and !#$%&'*+-.^_`|~"
                .to_owned(),
        )
    }
}
