use super::*;
use crate::spec::read;

fn rungs(ladder: &str) -> Result<Vec<RungSpec>, Problem> {
    let text = format!(
        "target = \"grpc://h:1\"\n[call.grpc]\nmethod = \"a.B/C\"\n[load]\nrate = \"5/s\"\n[ladder]\n{ladder}"
    );
    read(&text).expect("a plan").rungs()
}

#[test]
fn every_combination_is_a_rung() {
    let found = rungs("tls = [\"off\", \"mutual\"]\n\"load.connections\" = [1, 10]").unwrap();
    let names: Vec<&str> = found.iter().map(|r| r.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "connections 1, tls off",
            "connections 1, tls mutual",
            "connections 10, tls off",
            "connections 10, tls mutual"
        ]
    );
    assert_eq!(found[3].spec.load.connections, Some(10));
    assert_eq!(found[3].spec.target.as_deref(), Some("grpcs://h:1"));
    assert_eq!(found[2].spec.target.as_deref(), Some("grpc://h:1"));
    assert_eq!(found[2].spec.ladder, None);
    assert_eq!(found[1].security, RungSecurity::Mutual);
}

#[test]
fn connections_new_resumed_and_reused() {
    let found = rungs("connection = [\"reused\", \"new\"]").unwrap();
    assert_eq!(found[0].spec.load.reuse.as_deref(), Some("always"));
    assert_eq!(found[1].spec.load.reuse.as_deref(), Some("never"));
}

#[test]
fn resumption_objective_applies_to_resuming_rungs() {
    let text = "target = \"https://h:1/x\"\n[call.http]\n[load]\nclients = 1\n[objective]\nresumed = \">= 100%\"\nerrors = \"< 1%\"\n[ladder]\nconnection = [\"new\", \"resumed\"]";
    let found = read(text).unwrap().rungs().unwrap();
    let promised: Vec<usize> = found.iter().map(|r| r.spec.objective.len()).collect();
    assert_eq!(promised, [1, 2]);
}

#[test]
fn explicitly_listed_rungs_are_expanded() {
    let found = rungs(
        "serve = [\"score\"]\nrungs = [{ network = \"localhost\" }, { network = \"namespaces\" }, \
         { network = \"namespaces\", tls = \"mutual\" }]",
    )
    .unwrap();
    let names: Vec<&str> = found.iter().map(|r| r.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "network localhost",
            "network namespaces",
            "network namespaces, tls mutual"
        ]
    );
    assert_eq!(found[2].network, RungNetwork::Namespaces);
    assert_eq!(found[2].security, RungSecurity::Mutual);
    // With another axis, each listed rung is measured at all of its values.
    let listed = "rungs = [{ tls = \"off\" }, { tls = \"server\" }]";
    let found = rungs(&format!("{listed}\n\"load.connections\" = [1, 2]")).unwrap();
    assert_eq!(found.len(), 4);
}

#[test]
fn listed_rungs_override_target_and_tls() {
    let text = "target = \"grpcs://h:1\"\n[tls]\nca = \"ca.crt\"\n[call.grpc]\nmethod = \"a.B/C\"\n\
         [load]\nrate = \"5/s\"\n[ladder]\nrungs = [{ name = \"plain\", target = \"grpc://h:2\" }, \
         { name = \"tls\" }, { name = \"mutual\", target = \"grpcs://h:3\", \
         tls = { cert = \"c.crt\", key = \"c.key\" } }, { target = \"grpcs://h:4\", name = \"nginx\" }]";
    let found = read(text).unwrap().rungs().unwrap();
    let seen: Vec<_> = found
        .iter()
        .map(|r| {
            let tls = r.spec.tls.as_ref();
            let (ca, cert) = (
                tls.is_some_and(|t| t.ca.is_some()),
                tls.is_some_and(|t| t.cert.is_some()),
            );
            (
                r.name.as_str(),
                r.spec.target.as_deref().unwrap(),
                r.security,
                ca,
                cert,
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("plain", "grpc://h:2", RungSecurity::Off, false, false),
            ("tls", "grpcs://h:1", RungSecurity::Server, true, false),
            ("mutual", "grpcs://h:3", RungSecurity::Mutual, true, true),
            ("nginx", "grpcs://h:4", RungSecurity::Server, true, false),
        ]
    );
}

#[test]
fn listed_rungs_override_server() {
    let found = rungs(
        "serve = [\"score\"]\nrungs = [{ name = \"now\" }, { serve = [\"score\", \"--busy\", \"5us\"] }]",
    )
    .unwrap();
    let seen: Vec<_> = found
        .iter()
        .map(|r| (r.name.as_str(), r.serve.is_some()))
        .collect();
    assert_eq!(seen, [("now", false), ("score --busy 5us", true)]);
    let wrong = rungs("rungs = [{ name = \"a\" }, { serve = [\"score\"] }]").unwrap_err();
    assert!(
        wrong.to_string().contains("but the ladder has none"),
        "{wrong}"
    );
    for (table, expected) in [
        ("name = 1", "expected a string"),
        ("serve = \"score\"", "write a list: [\"score\"]"),
    ] {
        let text = format!("[ladder]\nserve = [\"score\"]\nrungs = [{{ {table} }}, {{}}]");
        let wrong = read(&text).unwrap_err();
        assert_eq!(wrong[0].key, "ladder.rungs");
        assert!(wrong[0].message.contains(expected), "{}", wrong[0]);
        let at = wrong[0].span.clone().map(|span| &text[span]);
        assert_eq!(at, table.split(" = ").nth(1));
    }
}

#[test]
fn sidecars_are_an_axis() {
    let found = rungs("via = [\"direct\", \"one sidecar\", \"two sidecars\"]").unwrap();
    let vias: Vec<RungRoute> = found.iter().map(|r| r.route.clone()).collect();
    assert_eq!(
        vias,
        [
            RungRoute::Direct,
            RungRoute::OneSidecar,
            RungRoute::TwoSidecars
        ]
    );
    assert_eq!(found[2].name, "via two sidecars");
    let wrong = rungs("via = [\"three\", \"direct\"]").unwrap_err();
    assert!(wrong.to_string().contains("\"one sidecar\" or"), "{wrong}");
}

#[test]
fn proxies_of_a_folder_form_chains() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["near", "far"] {
        std::fs::write(folder.path().join(format!("{name}.toml")), "").unwrap();
    }
    let rungs_of = |axes: &str| {
        rungs(&format!(
            "proxies = {:?}\n{axes}",
            folder.path().to_str().unwrap()
        ))
    };
    let found = rungs_of(
        "via = [\"direct\", \"near + far\"]\nbetween_tls = [\"off\"]\nproxy_workers = [2]",
    )
    .unwrap();
    let chain = ["near", "far"].map(str::to_owned).to_vec();
    assert_eq!(found[1].route, RungRoute::Proxies(chain));
    assert_eq!(
        (found[1].between_tls, found[1].proxy_workers),
        (RungSecurity::Off, 2)
    );
    for (axes, expected) in [
        ("via = [\"near\", \"nearer\"]", "`nearer` is unknown"),
        (
            "via = [\"near\", \"near+direct\"]",
            "`direct` is not a proxy",
        ),
        ("via = [\"near\", \"near+\"]", "`` is unknown"),
        (
            "via = [\"near\", \"far+far+far+far+far+far+far+far+far\"]",
            "has 9 proxies",
        ),
        (
            "via = [\"near\", \"far\"]\nproxy_workers = [0]",
            "write 1 to 64",
        ),
    ] {
        let wrong = rungs_of(axes).unwrap_err().to_string();
        assert!(wrong.contains(expected), "{wrong}");
    }
}

#[test]
fn invalid_axes_are_reported() {
    let error_of = |ladder: &str| {
        let problem = rungs(ladder).unwrap_err();
        let help = problem.help.clone().unwrap_or_default();
        format!("{problem} {help}")
    };
    assert!(error_of("tls = [\"on\", \"off\"]").contains("use \"off\", \"server\" or \"mutual\""));
    assert!(error_of("\"load.conections\" = [1, 2]").contains("unknown field"));
    assert!(error_of("sweets = [1, 2]").contains("an axis is tls"));
    assert!(error_of("tls = [\"off\"]").contains("the axes make 1 rungs"));
    assert!(error_of("tls = []").contains("an axis without values"));
    assert!(error_of("network = [\"lan\", \"localhost\"]").contains("\"namespaces\""));
    assert!(error_of("network = [\"localhost\", \"namespaces\"]").contains("serve ="));
    assert!(error_of("rungs = [{ tls = \"on\" }, { tls = \"off\" }]").contains("`on` is unknown"));
}
