use plimsoll_model::spec::{self, ResolveContext};

use super::*;

/// Resolves plans without files, variables or schemas.
struct EmptyContext;

impl ResolveContext for EmptyContext {
    fn env_variable(&self, _: &str) -> Option<String> {
        None
    }
    fn read(&self, _: &Path) -> std::io::Result<String> {
        Err(ErrorKind::NotFound.into())
    }
    fn read_bytes(&self, _: &Path) -> std::io::Result<Vec<u8>> {
        Err(ErrorKind::NotFound.into())
    }
}

fn limits(allowed: &[&str]) -> LoadLimits {
    let allowed = allowed.iter().map(|typed| typed.parse().unwrap()).collect();
    LoadLimits {
        allowed,
        max_rate_per_s: 1000.0,
        max_duration: Duration::from_secs(60),
        max_connections: 100,
        allows_plan_code: false,
        variables: vec!["TOKEN".to_owned()],
        folders: Vec::new(),
        is_read_only: false,
    }
}

fn plan(text: &str) -> Plan {
    plimsoll_protocols::registry::register_protocols();
    spec::resolve(&spec::read(text).unwrap(), &EmptyContext).unwrap()
}

fn plan_of(target: &str, load: &str) -> Plan {
    plan(&format!(
        "target = \"{target}\"\n[call.http]\nmethod = \"GET\"\n[load]\n{load}\n"
    ))
}

/// Returns the error of a load on a loopback address; `None`: it is allowed.
fn refusal_of_load(load: &str) -> Option<String> {
    let checked = limits(&[]).check(&plan_of("http://127.0.0.1:80/", load));
    checked.err().map(|failure| failure.to_string())
}

fn is_allowed(allowed: &[&str], target: &str, load: &str) -> bool {
    limits(allowed).check(&plan_of(target, load)).is_ok()
}

const SMALL_LOAD: &str = "rate = \"10/s\"\nduration = \"1s\"";

#[test]
fn only_loopback_is_allowed_by_default() {
    for target in [
        "http://127.0.0.1:80/",
        "http://127.8.9.1:8080/",
        "http://[::1]:80/",
        "http://localhost:1/",
        "http://LOCALHOST:1/",
        "http://[::ffff:127.0.0.1]:80/",
    ] {
        assert!(is_allowed(&[], target, SMALL_LOAD), "{target}");
    }
    for target in [
        "http://10.0.0.1:80/",
        "http://0.0.0.0:80/",
        "http://example.com/",
        "http://localhost.example.com/",
        "http://127.0.0.1.example.com/",
        "http+unix:/run/a.sock:/",
    ] {
        assert!(!is_allowed(&[], target, SMALL_LOAD), "{target}");
    }
}

#[test]
fn allowed_target_may_have_one_port() {
    let allowed = [
        "Example.com:443",
        "10.0.0.1",
        "[fd00::1]:8080",
        "unix:/run/a.sock",
    ];
    for target in [
        "https://example.com/",
        "https://EXAMPLE.com.:443/",
        "http://10.0.0.1:5/",
        "http://[fd00::1]:8080/",
        "http+unix:/run/a.sock:/",
    ] {
        assert!(is_allowed(&allowed, target, SMALL_LOAD), "{target}");
    }
    for target in [
        "http://example.com:80/",
        "http://10.0.0.2:5/",
        "http://[fd00::1]:8081/",
        "http+unix:/run/b.sock:/",
        // A list replaces the default, so loopback addresses have to be on it, too.
        "http://127.0.0.1:80/",
    ] {
        assert!(!is_allowed(&allowed, target, SMALL_LOAD), "{target}");
    }
}

#[test]
fn given_addresses_and_proxies_are_targets() {
    let local = "http://localhost:80/";
    let resolved = |address| format!("{SMALL_LOAD}\nresolve = [\"localhost:80:{address}\"]");
    assert!(is_allowed(&[], local, &resolved("127.0.0.2")));
    assert!(!is_allowed(&[], local, &resolved("10.0.0.1")));
    let proxied = |host| format!("{SMALL_LOAD}\nproxy = \"http://{host}:3128\"");
    assert!(is_allowed(&[], local, &proxied("127.0.0.1")));
    assert!(!is_allowed(&[], local, &proxied("10.0.0.1")));
}

#[test]
fn second_target_of_sessions_is_checked() {
    let text = |socket: &str| {
        format!(
            "target = \"session://127.0.0.1:8000\"\n[call.session]\nsocket = \"{socket}\"\n[load]\n{SMALL_LOAD}\n"
        )
    };
    let slow = LoadLimits {
        max_connections: 10_000,
        ..limits(&[])
    };
    assert!(slow.check(&plan(&text("ws://127.0.0.1:4000"))).is_ok());
    let failure = slow.check(&plan(&text("ws://10.0.0.1:4000"))).unwrap_err();
    assert!(
        failure.to_string().contains("--allow 10.0.0.1:4000"),
        "{failure}"
    );
}

#[test]
fn invalid_allowed_target_is_rejected() {
    for typed in [
        "", ":80", "a:b", "a:0", "http://a", "[::1", "[::1]80", "a b",
    ] {
        assert!(typed.parse::<AllowedTarget>().is_err(), "{typed}");
    }
}

#[test]
fn rate_beyond_limit_is_refused() {
    assert_eq!(
        refusal_of_load("rate = \"1000/s\"\nduration = \"1s\""),
        None
    );
    for load in [
        "rate = \"1001/s\"\nduration = \"1s\"",
        "rate = { from = \"1/s\", to = \"1001/s\", over = \"1s\" }\nduration = \"1s\"",
        "steps = [{ for = \"1s\", rate = \"1/s\" }, { for = \"1s\", rate = \"2000/s\" }]",
    ] {
        let refusal = refusal_of_load(load).expect(load);
        assert!(refusal.contains("--max-rate"), "{refusal}");
    }
}

#[test]
fn closed_loop_needs_bound_on_rate() {
    assert!(
        refusal_of_load("clients = 5\nduration = \"1s\"")
            .unwrap()
            .contains("load.think")
    );
    assert_eq!(
        refusal_of_load("clients = 5\nthink = \"5ms\"\nduration = \"1s\""),
        None
    );
    assert!(refusal_of_load("clients = 6\nthink = \"5ms\"\nduration = \"1s\"").is_some());
    assert_eq!(refusal_of_load("clients = 5\ncalls = 1000"), None);
    assert!(refusal_of_load("clients = 5\ncalls = 1001").is_some());
}

#[test]
fn profile_needs_permission_for_code() {
    let load = format!("{SMALL_LOAD}\n[watch]\nprofile = \"server\"");
    let refusal = refusal_of_load(&load).unwrap();
    assert!(refusal.contains("watch.profile"), "{refusal}");
    assert!(refusal.contains("--allow-plan-code"), "{refusal}");
    let permissive = LoadLimits {
        allows_plan_code: true,
        ..limits(&[])
    };
    let plan = plan_of("http://127.0.0.1:80/", &load);
    assert!(permissive.check(&plan).is_ok());
}

#[test]
fn server_metrics_come_from_allowed_hosts() {
    let load = |url: &str| format!("{SMALL_LOAD}\n[watch]\nserver_metrics = \"{url}\"");
    for url in [
        "auto",
        "http://127.0.0.1:9/metrics",
        "http://[::1]:9/metrics",
    ] {
        assert_eq!(refusal_of_load(&load(url)), None, "{url}");
    }
    let refusal = refusal_of_load(&load("http://10.0.0.1:9/metrics")).unwrap();
    assert!(refusal.contains("watch.server_metrics"), "{refusal}");
    assert!(refusal.contains("--allow 10.0.0.1:9"), "{refusal}");
}

#[test]
fn metrics_url_follows_target_and_key() {
    let of = |target: &str, source: &str| {
        let load = format!("{SMALL_LOAD}\n[watch]\nserver_metrics = \"{source}\"");
        let url = metrics_url(&plan_of(target, &load)).map_err(|e| e.to_string())?;
        Ok::<String, String>(url.expect("the plan names it").into())
    };
    for (target, source, url) in [
        (
            "http://127.0.0.1:8000/v1/chat/completions",
            "auto",
            "http://127.0.0.1:8000/metrics",
        ),
        ("https://[::1]:8000/", "auto", "https://[::1]:8000/metrics"),
        (
            "http://127.0.0.1:8000/",
            "http://127.0.0.1:9/x?a=1",
            "http://127.0.0.1:9/x?a=1",
        ),
    ] {
        assert_eq!(of(target, source).as_deref(), Ok(url));
    }
    let refusal = of("http://127.0.0.1:8000/", "ftp://127.0.0.1/").unwrap_err();
    assert!(refusal.contains("watch.server_metrics"), "{refusal}");
    assert!(refusal.contains("over HTTP"), "{refusal}");
}

#[test]
fn duration_includes_warmup() {
    assert_eq!(
        refusal_of_load("rate = \"1/s\"\nduration = \"50s\"\nwarmup = \"10s\""),
        None
    );
    let refusal = refusal_of_load("rate = \"1/s\"\nduration = \"50s\"\nwarmup = \"11s\"").unwrap();
    assert!(
        refusal.contains("61s") && refusal.contains("--max-duration"),
        "{refusal}"
    );
}

#[test]
fn connections_of_cold_calls_are_bounded_by_time() {
    assert_eq!(
        refusal_of_load(&format!("{SMALL_LOAD}\nconnections = 100")),
        None
    );
    assert!(refusal_of_load(&format!("{SMALL_LOAD}\nconnections = 101")).is_some());
    let cold = "rate = \"10/s\"\nduration = \"1s\"\nreuse = \"never\"\nconnect_timeout = \"5s\"\ndeadline = ";
    assert_eq!(refusal_of_load(&format!("{cold}\"5s\"")), None);
    assert!(refusal_of_load(&format!("{cold}\"6s\"")).is_some());
    assert_eq!(
        refusal_of_load(&format!("{cold}\"6s\"\nmax_in_flight = 100")),
        None
    );
    assert!(refusal_of_load(&format!("{SMALL_LOAD}\nprocesses = 101")).is_some());
}

#[test]
fn loads_at_once_share_limit_of_connections() {
    let plan = plan_of(
        "http://127.0.0.1:80/",
        &format!("{SMALL_LOAD}\nconnections = 60"),
    );
    assert!(limits(&[]).check_connections(&[&plan]).is_ok());
    assert!(limits(&[]).check_connections(&[&plan, &plan]).is_err());
}

#[test]
fn search_is_kept_within_limits() {
    let limits = limits(&[]);
    let mut find = FindSpec::default();
    limits.fill_in_search_limits(&mut find);
    assert_eq!(
        (find.most, find.budget),
        (Some(Rate(1000.0)), Some(Period(Duration::from_secs(60))))
    );
    let goal = SearchGoal {
        most_per_s: 1000.0,
        budget_s: 60.0,
        ..SearchGoal::default()
    };
    assert!(limits.check_search(&goal).is_ok());
    assert!(
        limits
            .check_search(&SearchGoal {
                most_per_s: 1001.0,
                ..goal.clone()
            })
            .is_err()
    );
    assert!(
        limits
            .check_search(&SearchGoal {
                budget_s: 61.0,
                ..goal
            })
            .is_err()
    );
}

#[test]
fn files_and_variables_outside_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().canonicalize().unwrap();
    let (inside, outside) = (root.join("in"), root.join("out"));
    for folder in [&inside, &outside] {
        std::fs::create_dir(folder).unwrap();
        std::fs::write(folder.join("rows.csv"), "a\n1\n").unwrap();
    }
    std::os::unix::fs::symlink(outside.join("rows.csv"), inside.join("link.csv")).unwrap();
    let limits = LoadLimits {
        folders: vec![inside.clone()],
        ..limits(&[])
    };
    let is_allowed = |path: &Path| limits.check_file("rows.file", path).is_ok();
    assert!(is_allowed(&inside.join("rows.csv")));
    assert!(is_allowed(&inside.join("missing.csv")));
    for path in [
        outside.join("rows.csv"),
        inside.join("link.csv"),
        inside.join("../out/rows.csv"),
        PathBuf::from("-"),
    ] {
        assert!(!is_allowed(&path), "{}", path.display());
    }
    assert!(limits.check_variable("TOKEN").is_ok());
    assert!(limits.check_variable("HOME").is_err());
}

#[test]
fn limits_survive_environment() {
    let limits = limits(&["example.com:443", "unix:/run/a.sock"]);
    let text = serde_json::to_string(&limits).unwrap();
    assert_eq!(serde_json::from_str::<LoadLimits>(&text).unwrap(), limits);
}

#[test]
fn journeys_count_with_all_their_calls() {
    let checked = |repeat: &str| {
        let journey = plan(&format!(
            "target = \"http://127.0.0.1:80/\"\n[[steps]]\npath = \"/a\"\n[steps.take]\npage = \"/next\"\n\
             [[steps]]\npath = \"/b\"\nrepeat = {repeat}\non_failure = \"retry\"\nattempts = 2\n\
             [load]\nrate = \"100/s\"\nduration = \"1s\"\ndeadline = \"50ms\"\nconnect_timeout = \"100ms\""
        ));
        limits(&[])
            .check(&journey)
            .err()
            .map(|failure| failure.to_string())
    };
    assert_eq!(checked("4"), None);
    let refused = checked("5").expect("1,100 calls a second");
    assert!(
        refused.contains("up to 1100/s is more than the 1000/s"),
        "{refused}"
    );
    assert!(checked("\"while page\"").is_some_and(|text| text.contains("20100/s")));
}
