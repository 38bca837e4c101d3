use std::collections::BTreeMap;
use std::ffi::OsStr;

use plimsoll_model::spec::{RungSecurity, WireFormat};
use plimsoll_stack::certificates::CertificatePaths;

use super::*;
use crate::ladder_run::{ProxyTask, example_configuration};

/// Returns a proxy as it would be if it was installed.
fn installed(proxy: &Arc<Proxy>, number: &str, printed: &str) -> InstalledProxy {
    InstalledProxy {
        proxy: Arc::clone(proxy),
        program: PathBuf::from("/usr/sbin").join(&proxy.name),
        version: ProxyVersion {
            number: number.to_owned(),
            tls: None,
            printed: printed.to_owned(),
        },
    }
}

/// Returns the task of the first of two proxies.
fn task(wire: WireFormat, listen: RungSecurity, upstream: RungSecurity) -> ProxyTask {
    ProxyTask {
        calls: ProxiedCalls {
            wire,
            calls_model: true,
        },
        listen,
        upstream,
        workers: 2,
        neighbours: SameNeighbours {
            before: 0,
            after: 1,
        },
    }
}

fn tasks() -> impl Iterator<Item = ProxyTask> {
    let security = RungSecurity::ALL;
    let legs = security
        .into_iter()
        .flat_map(move |listen| security.map(|upstream| (listen, upstream)));
    legs.flat_map(|(listen, upstream)| WireFormat::ALL.map(|wire| task(wire, listen, upstream)))
}

#[test]
fn shipped_proxies_have_a_configuration_for_every_task() {
    let catalog = ProxyCatalog::load(None).unwrap();
    let mut made: BTreeMap<&str, u32> = BTreeMap::new();
    for proxy in catalog.iter() {
        let installed = installed(proxy, "1.26.0", "--with-stream");
        for task in tasks() {
            match example_configuration(&installed, task) {
                Ok(text) => {
                    for part in ["127.0.0.1:8080", "127.0.0.1:9090"] {
                        let port = part.rsplit(':').next().unwrap();
                        assert!(text.contains(port), "{}: {task:?}\n{text}", proxy.name);
                    }
                    assert!(!text.contains("\n\n\n"), "{}: {task:?}\n{text}", proxy.name);
                    let has_key = text.contains("/run/certs") || text.contains("/run/proxy/");
                    let is_secured =
                        (task.listen, task.upstream) != (RungSecurity::Off, RungSecurity::Off);
                    assert!(has_key || !is_secured, "{}: {task:?}\n{text}", proxy.name);
                    *made.entry(&proxy.name).or_default() += 1;
                }
                Err(reason) => {
                    assert!(
                        !reason.contains(".toml"),
                        "{}: {task:?}: {reason}",
                        proxy.name
                    );
                }
            }
        }
    }
    // Five protocols, each end with three kinds of security.
    for name in ["haproxy", "nginx", "envoy", "envoy-tunnel"] {
        assert_eq!(made[name], 45, "{name}");
    }
    // Plaintext or TLS of servers, on both sides.
    assert_eq!(made["litellm"], 4);
}

/// The first end of a tunnel sends CONNECT requests over HTTP/2, and the second accepts them; the ends of the chain have
/// the protocol of the calls.
#[test]
fn tunnel_ends_are_configured_by_their_place() {
    let catalog = ProxyCatalog::load(None).unwrap();
    let tunnel = installed(catalog.find_proxy("envoy-tunnel").unwrap(), "1.40.0", "");
    let (off, mutual) = (RungSecurity::Off, RungSecurity::Mutual);
    let at = |before, after, task| {
        let neighbours = SameNeighbours { before, after };
        example_configuration(&tunnel, ProxyTask { neighbours, ..task })
    };
    let near = at(0, 1, task(WireFormat::Http1, mutual, mutual)).unwrap();
    for part in ["tunneling_config", "http2_protocol_options: {}"] {
        assert!(near.contains(part), "{part}: {near}");
    }
    let offers = |text: &str| -> Vec<String> {
        let lines = text
            .lines()
            .filter_map(|line| line.split_once("alpn_protocols: "));
        lines.map(|(_, offered)| offered.to_owned()).collect()
    };
    assert_eq!(offers(&near), ["[\"http/1.1\"]", "[\"h2\"]"]);
    let far = at(1, 0, task(WireFormat::Http1, mutual, mutual)).unwrap();
    for part in ["connect_matcher", "connect_config", "allow_connect: true"] {
        assert!(far.contains(part), "{part}: {far}");
    }
    assert_eq!(offers(&far), ["[\"h2\"]", "[\"http/1.1\"]"]);
    let plain = at(3, 0, task(WireFormat::Bytes, mutual, off)).unwrap();
    assert!(plain.contains("connect_matcher"), "{plain}");
    let said = at(2, 0, task(WireFormat::Http1, off, off)).unwrap_err();
    assert!(said.contains("a tunnel has two ends"), "{said}");
}

#[test]
fn gateway_of_models_refuses_other_calls() {
    let catalog = ProxyCatalog::load(None).unwrap();
    let gateway = installed(catalog.find_proxy("litellm").unwrap(), "1.108.7", "");
    let (off, server) = (RungSecurity::Off, RungSecurity::Server);
    let secured = task(WireFormat::Http1, server, server);
    let text = example_configuration(&gateway, secured).unwrap();
    assert!(text.contains("\"https://localhost:9090/v1\""), "{text}");
    let calls = WireFormat::Http1.into();
    let plain = task(WireFormat::Http1, off, off);
    let other = ProxyTask { calls, ..plain };
    let said = example_configuration(&gateway, other).unwrap_err();
    assert!(said.contains("the API of a language model"), "{said}");
    let text = example_configuration(&gateway, plain).unwrap();
    assert!(text.contains("\"http://127.0.0.1:9090/v1\""), "{text}");
}

#[test]
fn empty_variables_are_removed_from_environment() {
    let catalog = ProxyCatalog::load(None).unwrap();
    let gateway = installed(catalog.find_proxy("litellm").unwrap(), "1.108.7", "");
    let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let route = ProxyRoute {
        calls: WireFormat::Http1.into(),
        listen: at(8080),
        upstream: at(9090),
        listen_tls: None,
        upstream_tls: Some(UpstreamTls {
            ca: None,
            identity: None,
            server_name: "localhost".to_owned(),
        }),
        workers: 1,
        neighbours: SameNeighbours::default(),
        dir: PathBuf::from("/run/proxy"),
    };
    let command = gateway.command(&route).unwrap();
    let value = |name: &str| {
        let found = command.get_envs().find(|(known, _)| *known == name);
        found.and_then(|(_, value)| value?.to_str())
    };
    assert_eq!(value("SSL_VERIFY"), Some("False"));
    let unlocked = value("LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY");
    assert_eq!(unlocked, Some("true"));
    let is_removed = |name: &str| command.get_envs().any(|of| of == (OsStr::new(name), None));
    assert!(is_removed("DATABASE_URL") && is_removed("SSL_KEYFILE_PATH"));
}

#[test]
fn version_query_has_its_own_environment() {
    let (_, haproxy) = SHIPPED_DEFINITIONS[0];
    let text = haproxy
        .replacen("[\"haproxy\"]", "[\"sh\"]", 1)
        .replacen(
            "[\"-vv\"]",
            "[\"-c\", 'echo \"HAProxy version $NUMBER\"']",
            1,
        )
        .replacen(
            "'HAProxy version (\\S+)'",
            "'version (\\S+)', environment = { NUMBER = \"2.9\" }",
            1,
        );
    let proxy = Arc::new(Proxy::parse("mine", &text, "mine.toml").unwrap());
    assert_eq!(proxy.find_installed().unwrap().version.number, "2.9");
}

#[test]
fn wrong_definitions_name_file_key_and_line() {
    let (_, whole) = SHIPPED_DEFINITIONS[0];
    let wrong = |text: &str| {
        let failure = Proxy::parse("mine", text, "mine.toml")
            .map(|_| ())
            .unwrap_err();
        failure.to_string()
    };
    for (from, to, expected) in [
        ("title = ", "heading = ", "unknown field `heading`"),
        ("title = \"HAProxy\"\n", "", "missing field `title`"),
        (
            "\"gRPC\"",
            "\"grpc\"",
            "`grpc` is not a protocol: use TCP, HTTP/1.1",
        ),
        ("(\\S+)'", "\\S+'", "the pattern has no group"),
        (
            "{% if wire != \"TCP\" %}",
            "{% if wire %",
            "config: line 12",
        ),
        ("haproxy.cfg", "../haproxy.cfg", "is not the name of a file"),
    ] {
        let text = whole.replacen(from, to, 1);
        assert_ne!(text, whole, "{from}");
        let said = wrong(&text);
        assert!(said.contains("mine.toml"), "{said}");
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

#[test]
fn unknown_names_in_templates_are_reported_with_their_line() {
    let (_, whole) = SHIPPED_DEFINITIONS[0];
    let text = whole.replacen("{{ workers }}", "{{ threads }}", 1);
    let proxy = Arc::new(Proxy::parse("mine", &text, "mine.toml").unwrap());
    let installed = installed(&proxy, "2.6.1", "");
    let task = tasks().next().unwrap();
    let said = example_configuration(&installed, task).unwrap_err();
    assert_eq!(said, "mine.toml: config: line 3: undefined value");
}

#[test]
fn folder_adds_and_replaces_proxies() {
    let folder = tempfile::tempdir().unwrap();
    let (_, haproxy) = SHIPPED_DEFINITIONS[0];
    for name in ["mine", "haproxy"] {
        let text = haproxy.replacen("\"HAProxy\"", "\"Mine\"", 1);
        fs::write(folder.path().join(format!("{name}.toml")), text).unwrap();
    }
    fs::write(folder.path().join("notes.txt"), "no definition").unwrap();
    let catalog = ProxyCatalog::load(Some(folder.path())).unwrap();
    for name in ["mine", "haproxy"] {
        assert_eq!(catalog.find_proxy(name).unwrap().title, "Mine");
    }
    assert_eq!(catalog.iter().count(), SHIPPED_DEFINITIONS.len() + 1);
    let empty = tempfile::tempdir().unwrap();
    let said = ProxyCatalog::load(Some(empty.path()))
        .unwrap_err()
        .to_string();
    assert!(said.contains("defines no proxy"), "{said}");
}

#[test]
fn protocols_are_forwarded_as_the_definition_says() {
    let catalog = ProxyCatalog::load(None).unwrap();
    let forwards = |name, wire| catalog.find_proxy(name).unwrap().converted_protocol(wire);
    assert_eq!(forwards("nginx", WireFormat::Http2), WireFormat::Http1);
    assert_eq!(
        forwards("nginx", WireFormat::Http2Trailers),
        WireFormat::Http2Trailers
    );
    assert_eq!(forwards("envoy", WireFormat::Http2), WireFormat::Http2);
}

/// Identities are one file where the definition says so.
#[test]
fn joined_keys_are_in_one_file() {
    let catalog = ProxyCatalog::load(None).unwrap();
    let set = CertificatePaths::for_dir(Path::new("/run/certs"));
    for proxy in catalog.iter() {
        let task = task(
            WireFormat::Http1,
            RungSecurity::Mutual,
            RungSecurity::Mutual,
        );
        // Some have no client certificates.
        let Ok(text) = example_configuration(&installed(proxy, "1.26.0", ""), task) else {
            continue;
        };
        let key = set.client_key.display().to_string();
        let has_both = text.contains("/run/proxy/client.pem");
        assert_eq!(has_both, proxy.joined_keys, "{}\n{text}", proxy.name);
        assert_eq!(
            text.contains(&key),
            !proxy.joined_keys,
            "{}\n{text}",
            proxy.name
        );
    }
}
