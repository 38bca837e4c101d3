use std::collections::BTreeMap;

use plimsoll_model::spec::RungSecurity;
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

fn tasks() -> impl Iterator<Item = ProxyTask> {
    let security = RungSecurity::ALL;
    let legs = security
        .into_iter()
        .flat_map(move |listen| security.map(|upstream| (listen, upstream)));
    legs.flat_map(|(listen, upstream)| {
        WireFormat::ALL.map(|wire| ProxyTask {
            wire,
            listen,
            upstream,
            workers: 2,
        })
    })
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
    for name in ["haproxy", "nginx", "envoy"] {
        assert_eq!(made[name], 45, "{name}");
    }
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
        let task = ProxyTask {
            wire: WireFormat::Http1,
            listen: RungSecurity::Mutual,
            upstream: RungSecurity::Mutual,
            workers: 1,
        };
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
