//! Hides secrets in displayed text: the user information and query values of URLs, the fields of JSON, keys in PEM form,
//! the header fields and bodies in a plan, and whatever secrets this process sends.
//!
//! In messages, secrets are replaced by stars ([`mask_urls`], [`mask_plan`]). In a saved plan, which can be run again,
//! and in a report's target they are replaced by the name of an environment variable
//! ([`replace_secrets_with_variables`], [`BodySecrets`]).

mod body_secrets;
mod known_secrets;
mod pem;
mod secret_names;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

pub use body_secrets::{BODY_VARIABLE_PREFIX, BodySecrets, fill_body_variables};
pub use known_secrets::remember_secret;
pub use secret_names::{
    is_secret_field_name, is_secret_field_value, is_secret_parameter, is_secret_parameter_name,
    subprotocol_token,
};

use body_secrets::{find_json_secrets, find_quoted_form_secrets};
use known_secrets::find_known_secrets;
use pem::find_pem_contents;

/// Prefix of the variables for a URL's query.
pub const QUERY_VARIABLE_PREFIX: &str = "PLIMSOLL_QUERY_";

/// Keys in the value of a header field that name where the secret is, not the secret itself: `{ env = "TOKEN" }`.
const SECRET_SOURCE_KEYS: [&str; 3] = ["command", "env", "file"];

/// Tables of a plan that contain header fields.
const HEADER_FIELD_TABLES: [&str; 3] = ["header", "headers", "metadata"];

/// Returns `text` with a star for each byte of a secret, so that its length is unchanged: in a URL, in a field of JSON,
/// of a key in PEM form, and of a secret that this process sends ([`remember_secret`]).
pub fn mask_urls(text: &str) -> Cow<'_, str> {
    replace_with_stars(text, find_secrets(text))
}

/// Returns the text of a plan like [`mask_urls`], with stars for the values of secret header fields and for the secrets
/// of forms as well.
pub fn mask_plan(text: &str) -> Cow<'_, str> {
    let mut secrets = find_secrets(text);
    secrets.extend(find_secret_field_values(text));
    secrets.extend(find_quoted_form_secrets(text));
    replace_with_stars(text, secrets)
}

/// Finds the secrets in any text.
fn find_secrets(text: &str) -> Vec<Range<usize>> {
    let mut secrets = find_userinfo_ranges(text);
    secrets.extend(find_pem_contents(text));
    let mut fields = find_secret_parameters_in_text(text);
    // The name of a variable is no secret, and says what to set.
    fields.retain(|(_, value)| !is_variable(&text[value.clone()]));
    fields.extend(find_json_secrets(text));
    let fields = fields.into_iter();
    secrets.extend(fields.map(|(_, value)| value));
    secrets.extend(find_known_secrets(text));
    secrets
}

/// Returns a URL, or its path and query, with environment variables in place of the secrets in its query.
pub fn replace_secrets_with_variables(url: &str) -> String {
    QuerySecrets::default().replace_secrets(url)
}

/// Returns the secrets in a URL's query, each with the variable that [`replace_secrets_with_variables`] writes for it.
pub fn query_string_secrets(url: &str) -> Vec<(String, String)> {
    let mut secrets = QuerySecrets::default();
    secrets.replace_secrets(url);
    secrets.into_variables()
}

/// The secrets in the queries of several URLs, each with its variable. Different values of a parameter have different
/// variables.
#[derive(Clone, Debug, Default)]
pub struct QuerySecrets {
    values: BTreeMap<String, String>,
}

impl QuerySecrets {
    /// Returns a URL, or its path and query, with environment variables in place of the secrets in its query. The
    /// fragment of a URL is left out: it is not sent, and may contain a secret.
    pub fn replace_secrets(&mut self, url: &str) -> String {
        let url = without_fragment(url);
        let mut hidden = Vec::new();
        for (name, value) in find_secret_parameters_in_url(url) {
            if variable_name(&url[value.clone()]).is_none() {
                let variable = self.assign_variable(&url[name], &url[value.clone()]);
                hidden.push((value, variable));
            }
        }
        let mut text = url.to_owned();
        for (value, variable) in hidden.into_iter().rev() {
            text.replace_range(value, &format!("${variable}"));
        }
        text
    }

    /// Returns the variables with their secrets.
    pub fn into_variables(self) -> Vec<(String, String)> {
        self.values.into_iter().collect()
    }

    /// Returns the variable of a parameter's value.
    fn assign_variable(&mut self, parameter: &str, value: &str) -> String {
        let first = variable_name_for(QUERY_VARIABLE_PREFIX, parameter);
        let mut variable = first.clone();
        for number in 2.. {
            let known = self.values.entry(variable.clone());
            if known.or_insert_with(|| value.to_owned()) == value {
                break;
            }
            variable = format!("{first}_{number}");
        }
        variable
    }
}

/// Returns `PREFIX_API_KEY` for `api-key`.
fn variable_name_for(prefix: &str, name: &str) -> String {
    let as_variable = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_uppercase()
        } else {
            '_'
        }
    };
    prefix
        .chars()
        .chain(name.chars().map(as_variable))
        .collect()
}

/// Returns whether the query of a URL or path contains a secret as text, or its fragment does, which is not sent.
pub fn has_secret_text(url: &str) -> bool {
    let (_, fragment) = url.split_once('#').unwrap_or_default();
    !query_string_secrets(url).is_empty()
        || !query_string_secrets(&format!("?{fragment}")).is_empty()
}

/// Replaces the variables in a URL's path and query (`api_key=$NAME`) with their values.
///
/// # Errors
/// Returns which variable is not set.
pub fn fill_variables(
    path: &str,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<String, String> {
    let mut text = path.to_owned();
    for (_, value) in find_secret_parameters_in_url(path).into_iter().rev() {
        let Some(name) = variable_name(&path[value.clone()]) else {
            continue;
        };
        let found = variable(name);
        let found = found.ok_or_else(|| format!("the environment variable {name} is not set"))?;
        text.replace_range(value, &found);
    }
    Ok(text)
}

/// Finds the secret parameters of a single URL, which follow its first `?`.
fn find_secret_parameters_in_url(url: &str) -> Vec<(Range<usize>, Range<usize>)> {
    let query = url.find('?').unwrap_or(url.len());
    let shift = |range: Range<usize>| range.start + query..range.end + query;
    find_secret_parameters_in_text(&url[query..])
        .into_iter()
        .map(|(name, value)| (shift(name), shift(value)))
        .collect()
}

/// Returns a URL without its fragment (RFC 3986 §3.5). A path is returned unchanged, because it can have no fragment.
fn without_fragment(url: &str) -> &str {
    match url.split_once('#') {
        // Behind an open `{{`, the character belongs to a template field.
        Some((before, _)) if before.contains("://") && before.rfind("{{") <= before.rfind("}}") => {
            before
        }
        _ => url,
    }
}

/// Returns whether a value is `$NAME`.
fn is_variable(value: &str) -> bool {
    variable_name(value).is_some()
}

/// Returns `NAME` for `$NAME`.
fn variable_name(value: &str) -> Option<&str> {
    let name = value.strip_prefix('$')?;
    let is_part = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_';
    (!name.is_empty() && name.bytes().all(is_part)).then_some(name)
}

fn replace_with_stars(text: &str, secrets: Vec<Range<usize>>) -> Cow<'_, str> {
    if secrets.is_empty() {
        return Cow::Borrowed(text);
    }
    let mut masked = text.to_owned();
    for secret in secrets {
        let stars = "*".repeat(secret.len());
        masked.replace_range(secret, &stars);
    }
    Cow::Owned(masked)
}

/// Returns whether a URL in running text ends before this byte.
fn is_url_end(byte: u8) -> bool {
    byte.is_ascii_whitespace() || b"\"'`<>".contains(&byte)
}

/// Finds the user information of the URLs in `text`: a user, a password, or both.
fn find_userinfo_ranges(text: &str) -> Vec<Range<usize>> {
    let mut all = Vec::new();
    for (at, scheme_end) in text.match_indices("://") {
        let start = at + scheme_end.len();
        let rest = &text[start..];
        let url = &rest[..rest.bytes().position(is_url_end).unwrap_or(rest.len())];
        let authority = &url[..url.find(['/', '?', '#']).unwrap_or(url.len())];
        let end = match authority.rfind('@') {
            Some(end) => Some(end),
            // A slash in a password makes the authority end too early; the text after its last colon is then not a
            // port.
            None => {
                let after = authority.rsplit_once(':').map(|(_, after)| after);
                let is_port = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
                after.filter(|a| !is_port(a)).and_then(|_| url.rfind('@'))
            }
        };
        if let Some(end) = end.filter(|end| *end > 0 && variable_name(&url[..*end]).is_none()) {
            all.push(start..start + end);
        }
    }
    all
}

/// Finds the query parameters in `text` with secret names. Returns the ranges of name and value.
fn find_secret_parameters_in_text(text: &str) -> Vec<(Range<usize>, Range<usize>)> {
    let bytes = text.as_bytes();
    let mut all: Vec<(Range<usize>, Range<usize>)> = Vec::new();
    for (mark, _) in text.match_indices(['?', '&', ';', '#']) {
        let start = mark + 1;
        // A value may contain a semicolon.
        if let Some((_, value)) = all.last()
            && value.contains(&mark)
        {
            continue;
        }
        let is_name = |b: &u8| b.is_ascii_alphanumeric() || b"_-.%[]".contains(b);
        let name_length = bytes[start..].iter().take_while(|b| is_name(b)).count();
        let name = start..start + name_length;
        if bytes.get(name.end) != Some(&b'=') {
            continue;
        }
        let value = name.end + 1;
        let ends = |b: &u8| is_url_end(*b) || b"&#?".contains(b);
        let length = bytes[value..].iter().take_while(|b| !ends(b)).count();
        let value = value..value + length;
        // A template field is replaced by a value of each call, so it is not a literal secret.
        let is_literal = !value.is_empty() && !text[value.clone()].starts_with("{{");
        if is_literal && is_secret_parameter(&text[name.clone()], &text[value.clone()]) {
            all.push((name, value));
        }
    }
    all
}

/// Finds the values of header fields with secret names in a plan's text. The text may be invalid TOML, so each line is
/// examined separately.
fn find_secret_field_values(plan: &str) -> Vec<Range<usize>> {
    let mut all = Vec::new();
    let mut in_fields = false;
    let mut start = 0;
    for line in plan.split_inclusive('\n') {
        let text = line.trim_start();
        if text.starts_with('[') {
            let name = text.trim_matches(['[', ']', ' ', '\r', '\n']);
            in_fields = name
                .split('.')
                .any(|part| HEADER_FIELD_TABLES.contains(&part.trim()));
        } else if in_fields || sets_header_fields(text) {
            let is_quote = |c: char| c == '"' || c == '\'';
            let mut at = 0;
            let mut in_secret_value = false;
            while let Some(found) = line[at..].find('=') {
                let equals = at + found;
                at = equals + 1;
                let name = line[..equals].trim_end().trim_end_matches(is_quote);
                let name_start = name.rfind(|c: char| is_quote(c) || " \t{,.".contains(c));
                let name = &name[name_start.map_or(0, |start| start + 1)..];
                let value = line[at..].trim_start();
                let from = line.len() - value.len();
                let is_secret = is_secret_field_name(name);
                let Some(quote) = value.chars().next().filter(|c| is_quote(*c)) else {
                    // A table such as `{ env = "NAME" }` says where the value comes from. Everything else is hidden up
                    // to the line's end: the value is no string, so where it ends is unknown.
                    if is_secret && !value.starts_with('{') {
                        let length = value.trim_end().len();
                        all.push(start + from..start + from + length);
                        break;
                    }
                    in_secret_value = is_secret;
                    continue;
                };
                let from = from + 1;
                let length = line[from..]
                    .find(quote)
                    .unwrap_or(line[from..].trim_end().len());
                at = from + length;
                let is_source = SECRET_SOURCE_KEYS.contains(&name);
                // `basic` is not a field's name, but a key in the value of a field: `{ basic = "me:hush" }`.
                let holds_secret = is_secret || name == "basic" || in_secret_value && !is_source;
                if holds_secret || is_secret_field_value(&line[from..from + length]) {
                    all.push(start + from..start + from + length);
                }
            }
        }
        start += line.len();
    }
    all
}

/// Returns whether a line of a plan sets header fields inline: `headers = { … }`, `headers.authorization = …`.
fn sets_header_fields(line: &str) -> bool {
    let key = line.split('=').next().unwrap_or_default();
    key.split('.')
        .any(|part| HEADER_FIELD_TABLES.contains(&part.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_masking_only_touches_secrets() {
        for (text, shown) in [
            ("redis://me:pw@a:1/2", "redis://*****@a:1/2"),
            ("`redis://:p/w@a:1` is", "`redis://****@a:1` is"),
            ("http://a:1/b@c", "http://a:1/b@c"),
            ("http://$PROXY@a:1", "http://$PROXY@a:1"),
            ("https://[::1]:1/x", "https://[::1]:1/x"),
            (
                "\"https://a/?api_key=s1&n=2\" and ?sig=s2",
                "\"https://a/?api_key=**&n=2\" and ?sig=**",
            ),
            (
                "/x?apiKey=s&X-Amz-Signature=t#u",
                "/x?apiKey=*&X-Amz-Signature=*#u",
            ),
            (
                "/x?max_tokens=5&keyword=k&monkey=m",
                "/x?max_tokens=5&keyword=k&monkey=m",
            ),
            ("/x?key={{row.key}}", "/x?key={{row.key}}"),
            ("/x?token=$TOKEN&sig=s", "/x?token=$TOKEN&sig=*"),
            ("/x?api%5Fkey=s&pass=t", "/x?api%5Fkey=*&pass=*"),
            ("/x?a=1;token=s;key=t&b=2", "/x?a=1;token=*******&b=2"),
            (
                "/cb?code=4/0AX4&state=af0ifjs&client_secret=x&assertion=y",
                "/cb?code=******&state=*******&client_secret=*&assertion=*",
            ),
            (
                "/x?code=US&state=open&status_code=404",
                "/x?code=US&state=open&status_code=404",
            ),
            (
                "https://a/#access_token=s&x=1",
                "https://a/#access_token=*&x=1",
            ),
            (
                r#"got {"password":"x\"y","n":1,"id_token":"z"#,
                r#"got {"password":"****","n":1,"id_token":"*"#,
            ),
            ("nothing: ?, & and ://", "nothing: ?, & and ://"),
        ] {
            assert_eq!(mask_urls(text), shown);
        }
    }

    #[test]
    fn secret_headers_in_plan_are_masked() {
        let plan = "target = \"http://u:p@a\"\n[call.http]\nheaders = { Authorization = \"Bearer a\", x = \"b\" }\n\
                    [tls]\nkey = \"client.key\"\n[call.grpc.metadata]\n\"x-api-key\" = 'c'\nplain = \"d\"\nauthorization = \"open\n\
                    [call.http]\nheaders.cookie = \"e\"\nheaders.authorization = { basic = \"f:g\" }\n";
        let shown = "target = \"http://***@a\"\n[call.http]\nheaders = { Authorization = \"********\", x = \"b\" }\n\
                     [tls]\nkey = \"client.key\"\n[call.grpc.metadata]\n\"x-api-key\" = '*'\nplain = \"d\"\nauthorization = \"****\n\
                     [call.http]\nheaders.cookie = \"*\"\nheaders.authorization = { basic = \"***\" }\n";
        assert_eq!(mask_plan(plan), shown);
        let plan = "body = 'a=b&client_secret=c%20d'\nbody = '{\"password\":\"e\"}'\n";
        let shown = "body = 'a=b&client_secret=*****'\nbody = '{\"password\":\"*\"}'\n";
        assert_eq!(mask_plan(plan), shown);
    }

    #[test]
    fn secrets_in_malformed_headers_are_masked() {
        let plan = "[call.http.headers]\nauthorization = Bearer X1\ncookie = [\"X2\", 3]\nx-key = { text = \"X3\" }\n\
                    proxy-login = \"Bearer X4\"\ntoken = { env = \"TOKEN\" }\naccept = 5\n";
        let shown = "[call.http.headers]\nauthorization = *********\ncookie = *********\nx-key = { text = \"**\" }\n\
                     proxy-login = \"*********\"\ntoken = { env = \"TOKEN\" }\naccept = 5\n";
        assert_eq!(mask_plan(plan), shown);
    }

    #[test]
    fn secrets_after_path_parameters_are_replaced() {
        assert_eq!(
            replace_secrets_with_variables("http://h/shop;session=1?api_key=HUSH"),
            "http://h/shop;session=1?api_key=$PLIMSOLL_QUERY_API_KEY"
        );
    }

    #[test]
    fn fragments_of_urls_are_not_kept() {
        for (url, kept) in [
            ("http://a/b?c=1#access_token=x", "http://a/b?c=1"),
            ("http://a#x", "http://a"),
            ("http://a/{{seq}}#x", "http://a/{{seq}}"),
            ("http://a/{{b#c}}", "http://a/{{b#c}}"),
            ("/b?c=1", "/b?c=1"),
            ("/b?c={{d#e}}", "/b?c={{d#e}}"),
        ] {
            assert_eq!(replace_secrets_with_variables(url), kept);
        }
    }

    #[test]
    fn query_secrets_round_trip_through_variables() {
        let url = "/v1?a=1&api_key=x%20y&token=z&token=w&key=$OWN";
        let saved = "/v1?a=1&api_key=$PLIMSOLL_QUERY_API_KEY&token=$PLIMSOLL_QUERY_TOKEN\
                     &token=$PLIMSOLL_QUERY_TOKEN_2&key=$OWN";
        assert_eq!(replace_secrets_with_variables(url), saved);
        assert_eq!(replace_secrets_with_variables(saved), saved);
        let mut secrets = query_string_secrets(url);
        secrets.push(("OWN".to_owned(), "o".to_owned()));
        let variable = |name: &str| {
            let found = secrets.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| value.clone())
        };
        let filled_in = fill_variables(saved, variable).unwrap();
        assert_eq!(filled_in, "/v1?a=1&api_key=x%20y&token=z&token=w&key=o");
        let error = fill_variables(saved, |_| None).unwrap_err();
        assert!(error.ends_with("is not set"), "{error}");
    }
}
