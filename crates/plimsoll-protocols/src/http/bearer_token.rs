//! Hides a token among the subprotocols of a WebSocket. Clients that can't set header fields, such as browsers, offer
//! it behind the subprotocol `bearer`.
//!
//! `resolve` calls [`change_token`] for a plan that is saved, and `call` finds the token's value by [`find_token`].

use plimsoll_model::spec::MetadataSpec;

/// The subprotocol whose successor is a token.
const BEARER_NAME: &str = "bearer";

/// The name under which a saved plan hides the token, as if it were the value of a header field.
const TOKEN_FIELD_NAME: &str = "subprotocol-token";

/// The environment variable that replaces the token in a saved plan.
pub(super) const TOKEN_VARIABLE: &str = "PLIMSOLL_METADATA_SUBPROTOCOL_TOKEN";

/// Returns the token among the names of subprotocols.
pub(super) fn find_token(names: &[String]) -> Option<&str> {
    let is_bearer = |name: &String| name.eq_ignore_ascii_case(BEARER_NAME);
    let place = names.iter().position(is_bearer)?;
    names.get(place + 1).map(String::as_str)
}

/// Calls `change` with the token among the subprotocols that the plan contains as text.
pub(super) fn change_token(
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
    let is_bearer = |name: &MetadataSpec| match name {
        MetadataSpec::Text(name) => name.eq_ignore_ascii_case(BEARER_NAME),
        _ => false,
    };
    let Some(place) = names.iter().position(is_bearer) else {
        return;
    };
    if let Some(token) = names.get_mut(place + 1) {
        change(TOKEN_FIELD_NAME, token);
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
        let names = ["v1", "bearer", "CANARY"].map(str::to_owned);
        assert_eq!(find_token(&names), Some("CANARY"));
        assert_eq!(find_token(&names[..2]), None);
        assert_eq!(find_token(&[]), None);
    }
}
