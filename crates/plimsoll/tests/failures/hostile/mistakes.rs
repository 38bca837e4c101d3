//! Mistakes in plans and flags.

use super::*;

/// Each change of one line must end with exit code 2, the place, and the correction.
#[test]
fn plan_mistakes_are_explained() {
    let place = Place::new();
    let plan = "\
target = \"grpc://127.0.0.1:1\"

[call.grpc]
method = \"score.ScoreService/GetScore\"

[load]
rate = \"10/s\"
duration = \"1s\"
";
    for (right, wrong, words) in [
        (
            "rate =",
            "ratee =",
            &["plan.toml:7:1", "ratee", "did you mean `rate`"][..],
        ),
        ("\"10/s\"", "\"0/s\"", &["plan.toml:7:8", "rate of 0"]),
        ("\"10/s\"", "\"10\"", &["plan.toml:7:8", "no unit", "10/s"]),
        ("\"1s\"", "\"1\"", &["plan.toml:8:12", "no unit", "1s"]),
        ("\"1s\"", "1", &["plan.toml:8:12", "1s"]),
        ("\"1s\"", "\"-1s\"", &["plan.toml:8:12"]),
        ("GetScore", "GetScores", &["plan.toml:4:10", "did you mean"]),
        ("[load]", "[load", &["plan.toml:6:"]),
    ] {
        fs::write(place.path("plan.toml"), plan.replace(right, wrong)).expect("writable");
        let arguments = ["run", "plan.toml", "--out", "never", "-q"];
        let output = run_to_end(&mut place.command(&arguments));
        let printed = stderr_of(&output);
        assert_eq!(output.status.code(), Some(2), "{printed}");
        for word in words {
            assert!(printed.contains(word), "{wrong}: {word:?}: {printed}");
        }
        assert!(!place.path("never").exists());
    }
}

#[test]
fn flag_mistakes_are_explained() {
    let place = Place::new();
    for (flags, words) in [
        (
            ["--rate", "0/s", "--duration", "1s"],
            ["--rate", "rate of 0"],
        ),
        (["--rate", "10/s", "--tick", "1"], ["--tick", "no unit"]),
        (["--rate", "10/s", "--spin", "1"], ["--spin", "no unit"]),
        (["--rate", "10/s", "--calls", "0"], ["--calls", "0"]),
    ] {
        let arguments = score_load("grpc://127.0.0.1:1", &flags);
        let output = run_to_end(&mut place.command(&arguments));
        let printed = stderr_of(&output);
        assert_eq!(output.status.code(), Some(2), "{printed}");
        for word in words {
            assert!(printed.contains(word), "{flags:?}: {word:?}: {printed}");
        }
    }
}

#[test]
fn nonexistent_watched_pid_is_rejected() {
    let place = Place::new();
    let flags = ["--clients", "1", "--calls", "1", "--out", "never", "--pid"];
    let arguments = [
        &score_load("grpc://127.0.0.1:1", &flags)[..],
        &["999999999"],
    ]
    .concat();
    let output = run_to_end(&mut place.command(&arguments));
    let printed = stderr_of(&output);
    assert_eq!(output.status.code(), Some(2), "{printed}");
    for word in ["`--pid`", "no process 999999999", "help: "] {
        assert!(printed.contains(word), "{word:?}: {printed}");
    }
    assert!(!place.path("never").exists());
}
