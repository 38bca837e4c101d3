//! Secrets in bodies and subprotocols, which saved plans replace with variables.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use plimsoll_model::spec::{self, ResolveContext, plan_secrets};
use plimsoll_protocols::registry::register_protocols;

/// An environment with variables only.
struct VariableContext(Vec<(String, String)>);

impl ResolveContext for VariableContext {
    fn env_variable(&self, name: &str) -> Option<String> {
        let mut known = self.0.iter();
        let (_, value) = known.find(|(known, _)| known == name)?;
        Some(value.clone())
    }
    fn read(&self, _: &Path) -> io::Result<String> {
        Err(io::ErrorKind::NotFound.into())
    }
    fn read_bytes(&self, _: &Path) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::NotFound.into())
    }
}

#[test]
fn saved_plan_has_body_variables() {
    register_protocols();
    let load = "[load]\nclients = 1\ncalls = 1\n";
    for (call, variables) in [
        (
            "target = \"http://a:1/\"\n[call.http]\nbody = '{\"password\":\"hush-1\",\"n\":\"{{seq}}\"}'\n",
            &["PLIMSOLL_BODY_PASSWORD"][..],
        ),
        (
            "target = \"http://a:1/\"\n[call.http]\nbody = \"refresh_token=hush-1&client_secret=hush-2\"\n",
            &["PLIMSOLL_BODY_CLIENT_SECRET", "PLIMSOLL_BODY_REFRESH_TOKEN"],
        ),
        (
            "target = \"http://a:1/\"\n[call.http]\nform = [{ name = \"api_key\", value = \"hush-1\" }]\n",
            &["PLIMSOLL_BODY_API_KEY"],
        ),
        (
            "target = \"ws://a:1/\"\n[call.http.websocket]\ngreeting = '{\"token\":\"hush-1\"}'\n\
             script = [{ body = '{\"token\":\"hush-2\"}' }]\n",
            &["PLIMSOLL_BODY_TOKEN", "PLIMSOLL_BODY_TOKEN_2"],
        ),
        (
            "target = \"sofa://a:1\"\n[call.bolt]\nservice = \"a.B:1.0\"\nmethod = \"c\"\n\
             arguments = '[{\"password\":\"hush-1\"}]'\n",
            &["PLIMSOLL_BODY_PASSWORD"],
        ),
        (
            "target = \"http://a:1/\"\n[[steps]]\npath = \"/a\"\nbody = '{\"password\":\"hush-1\"}'\n\
             [[steps]]\npath = \"/b\"\nbody = 'client_secret=hush-2'\n\
             [[steps]]\ntarget = \"ws://a:1\"\npath = \"/c\"\nsubprotocol = \"v1, bearer, hush-3\"\n\
             send = '{\"password\":\"hush-4\"}'\n",
            &[
                "PLIMSOLL_METADATA_STEP3_SUBPROTOCOL_TOKEN",
                "PLIMSOLL_BODY_CLIENT_SECRET",
                "PLIMSOLL_BODY_PASSWORD",
                "PLIMSOLL_BODY_PASSWORD_2",
            ],
        ),
    ] {
        // The steps are the last tables of a plan.
        let text = match call.split_once("[[steps]]") {
            Some((target, steps)) => format!("{target}{load}[[steps]]{steps}"),
            None => format!("{call}{load}"),
        };
        let typed = spec::read(&text).unwrap_or_else(|problems| panic!("{text}: {problems:?}"));
        let none = VariableContext(Vec::new());
        let first = spec::resolve(&typed, &none);
        let first = first.unwrap_or_else(|problems| panic!("{text}: {problems:?}"));
        let secrets = plan_secrets(&first);
        let names: Vec<&str> = secrets.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, variables, "{text}");
        let saved = typed.with_defaults(&first).to_toml().expect("writable");
        assert!(!saved.contains("hush"), "{saved}");
        let again = spec::read(&saved).expect("readable");
        let resolved = spec::resolve(&again, &VariableContext(secrets));
        let resolved = resolved.unwrap_or_else(|problems| panic!("{saved}: {problems:?}"));
        assert_eq!(resolved.call, first.call, "{saved}");
        let problems = spec::resolve(&again, &none).expect_err("no variables");
        assert!(
            problems[0].to_string().ends_with("is not set"),
            "{problems:?}"
        );
    }
}

#[test]
fn variables_of_different_values_differ() {
    register_protocols();
    let plan = "target = \"http://a:1/\"\n[call.http]\npath = \"/?token=hush-1\"\n[load]\nrate = \"1/s\"\ncalls = 2\n";
    for variants in [
        "[ladder]\nrungs = [{ target = \"http://b:1/?token=hush-2\" }, { target = \"http://b:1/?token=hush-3\" }]\n",
        "[lanes.a]\ncall.http.path = \"/?token=hush-2\"\n[lanes.b]\ncall.http.path = \"/?token=hush-3\"\n",
    ] {
        let typed = spec::read(&format!("{plan}{variants}")).expect("readable");
        let saved = typed.without_secrets().to_toml().expect("writable");
        assert!(!saved.contains("hush"), "{saved}");
        let variables = saved.split("token=").skip(1);
        let variables: BTreeSet<&str> = variables
            .filter_map(|rest| rest.split(['"', '\'']).next())
            .collect();
        let expected = [
            "$PLIMSOLL_QUERY_TOKEN",
            "$PLIMSOLL_QUERY_TOKEN_2",
            "$PLIMSOLL_QUERY_TOKEN_3",
        ];
        assert_eq!(variables, BTreeSet::from(expected), "{saved}");
    }
}
