//! Hides a token among the subprotocols that a request offers. Clients that can't set header fields, such as browsers,
//! offer it behind a name such as `bearer`, or as a part of a name.
//!
//! Sections and steps call [`change_token`] for a plan that is saved, and their calls find the token's value by
//! [`find_token`].

use plimsoll_model::formats::redaction::{is_secret_field_value, subprotocol_token};
use plimsoll_model::spec::MetadataSpec;

/// Subprotocols whose successor is a token.
const TOKEN_MARKERS: [&str; 5] = ["access_token", "authorization", "bearer", "jwt", "token"];

/// The name under which a saved plan hides the token, as if it were the value of a header field.
pub(crate) const TOKEN_FIELD_NAME: &str = "subprotocol-token";

/// The environment variable that replaces the token in a saved plan.
pub(crate) const TOKEN_VARIABLE: &str = "PLIMSOLL_METADATA_SUBPROTOCOL_TOKEN";

/// Returns the token among the names of subprotocols.
pub(crate) fn find_token<'a>(names: &[&'a str]) -> Option<&'a str> {
    find_token_index(names).map(|place| names[place])
}

fn find_token_index(names: &[&str]) -> Option<usize> {
    let is_token = |name: &&str| subprotocol_token(name).is_some() || is_secret_field_value(name);
    let is_marker = |name: &&str| {
        let mut markers = TOKEN_MARKERS.iter();
        markers.any(|marker| name.eq_ignore_ascii_case(marker))
    };
    let behind = || names.iter().position(is_marker).map(|place| place + 1);
    let place = names.iter().position(is_token).or_else(behind)?;
    (place < names.len()).then_some(place)
}

/// Calls `change` with the token among the subprotocols that the plan contains as text.
pub(crate) fn change_token(
    subprotocols: Option<&mut MetadataSpec>,
    change: &dyn Fn(&str, &mut MetadataSpec),
) {
    let Some(offered) = subprotocols else {
        return;
    };
    // Commas separate names, as in the header field.
    let split = |value: &MetadataSpec| match value {
        MetadataSpec::Text(names) => names
            .split(',')
            .map(|name| MetadataSpec::Text(name.trim().to_owned()))
            .collect(),
        other => vec![other.clone()],
    };
    let mut names: Vec<MetadataSpec> = offered.values().iter().flat_map(split).collect();
    let texts: Vec<&str> = names
        .iter()
        .map(|name| match name {
            MetadataSpec::Text(name) => name.as_str(),
            _ => "",
        })
        .collect();
    let Some(place) = find_token_index(&texts) else {
        return;
    };
    let typed = names[place].clone();
    change(TOKEN_FIELD_NAME, &mut names[place]);
    if names[place] != typed {
        *offered = MetadataSpec::Several(names);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Returns the subprotocols after the token has been replaced, and the names under which values were changed.
    fn changed(mut offered: MetadataSpec) -> (MetadataSpec, Vec<String>) {
        let names = RefCell::new(Vec::new());
        change_token(Some(&mut offered), &|name, value| {
            names.borrow_mut().push(name.to_owned());
            *value = MetadataSpec::Env(TOKEN_VARIABLE.to_owned());
        });
        (offered, names.into_inner())
    }

    #[test]
    fn token_behind_bearer_is_found() {
        let text = |name: &str| MetadataSpec::Text(name.to_owned());
        let env = || MetadataSpec::Env(TOKEN_VARIABLE.to_owned());
        for offered in [
            text("v1, Bearer,CANARY"),
            MetadataSpec::Several(vec![text("v1"), text("Bearer"), text("CANARY")]),
        ] {
            let (hidden, names) = changed(offered);
            let expected = MetadataSpec::Several(vec![text("v1"), text("Bearer"), env()]);
            assert_eq!(
                (hidden, names),
                (expected, vec![TOKEN_FIELD_NAME.to_owned()])
            );
        }
        for offered in [text("v1,v2"), text("bearer"), env()] {
            assert_eq!(changed(offered.clone()), (offered, Vec::new()));
        }
        let names = ["v1", "bearer", "CANARY"];
        assert_eq!(find_token(&names), Some("CANARY"));
        assert_eq!(find_token(&names[..2]), None);
        assert_eq!(find_token(&[]), None);
    }

    #[test]
    fn token_within_name_is_found() {
        for token in [
            "base64url.bearer.authorization.k8s.io.Q0FOQVJZ",
            "openai-insecure-api-key.CANARY",
            "eyJhbGciOiJub25lIn0.eyJhIjoxfQ.x",
        ] {
            assert_eq!(find_token(&["v1", token, "v2"]), Some(token));
            let (hidden, _) = changed(MetadataSpec::Text(format!("v1, {token}")));
            let expected = MetadataSpec::Several(vec![
                MetadataSpec::Text("v1".to_owned()),
                MetadataSpec::Env(TOKEN_VARIABLE.to_owned()),
            ]);
            assert_eq!(hidden, expected);
        }
    }
}
