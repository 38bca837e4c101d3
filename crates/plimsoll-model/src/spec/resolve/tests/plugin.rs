use super::*;

fn text(call: &str) -> String {
    format!(
        "target = \"plugin://a:7000\"\n[call.plugin]\n{call}\n[load]\nrate = \"10/s\"\nduration = \"1s\"\n"
    )
}

#[test]
fn a_plugins_call_has_the_defaults_of_its_documentation() {
    let plan = plan(&text("codec = \"x.so\"\npayload = \"hello\""));
    assert_eq!(plan.name, "x_example, steady");
    let CallPlan::Plugin(call) = &plan.call else {
        panic!("not a plugin's");
    };
    assert_eq!(call.codec, Path::new("x.so"));
    assert_eq!(call.frame, b"hello");
    assert_eq!(call.heartbeat, Some(Duration::from_secs(15)));
    assert_eq!((call.in_flight, call.max_frame), (None, 16 << 20));
    assert_eq!(plan.load.deadline, Some(DEADLINE));
}

#[test]
fn what_is_saved_of_a_plugins_call_is_the_same_plan() {
    let text = text(
        "codec = \"x.so\"\npayload = \"x\"\nheartbeat = \"none\"\ndeadline = \"2s\"\nin_flight = 3\nmax_frame = \"1MiB\"",
    );
    let (spec, first) = (read(&text).unwrap(), plan(&text));
    let saved = spec.filled_in(&first).to_toml().unwrap();
    let again = plan(&saved);
    assert_eq!(
        (&again.call, &again.load),
        (&first.call, &first.load),
        "{saved}"
    );
    assert_eq!(first.load.deadline, Some(Duration::from_secs(2)));
}

#[test]
fn wrong_calls_of_plugins_are_reported_by_key() {
    for (call, needle) in [
        ("", "`call.plugin.codec`: missing: name the shared object"),
        (
            "codec = \"x.so\"\npayload = \"a\"\nframe = \"78\"",
            "`call.plugin.frame`: given beside call.plugin.payload",
        ),
        (
            "codec = \"x.so\"\nin_flight = 0",
            "`call.plugin.in_flight`: 0",
        ),
        (
            "codec = \"x.so\"\nheartbeat = \"0s\"",
            "`call.plugin.heartbeat`: 0",
        ),
        (
            "codec = \"x.so\"\nmax_frame = \"2GiB\"",
            "`call.plugin.max_frame`: out of range",
        ),
        (
            "codec = \"absent.so\"",
            "`call.plugin.codec`: no such plugin",
        ),
    ] {
        let problems = wrong(&text(call));
        assert!(
            problems.iter().any(|p| p.contains(needle)),
            "{call}: {problems:?}"
        );
    }
}
