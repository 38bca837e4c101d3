//! Ways to start shards on a cluster: a batch script, and Kubernetes objects.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::support::peers::{peer, python, run_successfully};
use super::support::{self, Place, SERVER_MTLS, Server, stderr_of, text, wait};
use super::{Rendezvous, assert_complete, calls, plan};

/// Compares what one process measured with what shards measured.
#[track_caller]
fn assert_matches_one_process(place: &Place, run: &str) {
    let (one, merged) = (place.run_json("one"), place.run_json(run));
    assert_complete(&merged);
    for key in ["due", "ok", "errors", "not_started"] {
        assert_eq!(merged["total"][key], one["total"][key], "{key}");
    }
    assert_eq!(calls(place, run), calls(place, "one"));
    assert_eq!(merged["shards"].as_array().unwrap().len(), 3);
}

/// A fake `srun` that starts the tasks on this machine with Slurm's variables.
const FAKE_SRUN: &str = r#"#!/bin/bash
while [[ $1 == --* ]]; do shift; done
export SLURM_STEP_NUM_TASKS=3 SLURM_STEP_ID=0
for k in 0 1 2; do SLURM_PROCID=$k "$@" & tasks+=($!); done
worst=0
for task in "${tasks[@]}"; do
    code=0
    wait "$task" || code=$?
    ((code <= worst)) || worst=$code
done
exit "$worst"
"#;

#[test]
fn slurm_batch_script_starts_all_shards() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "0s"]);
    plan(&place, &server, 300, 3);
    place.run(&["run", "plan.toml", "--out", "one", "-q"]);
    let program = place.command(&[]).get_program().to_owned();
    let program = program.to_str().unwrap();
    let options = [
        "--shards",
        "3",
        "--per-node",
        "2",
        "--cores",
        "4",
        "--time",
        "10:00",
    ];
    let words = [&["slurm", "plan.toml", "--program", program][..], &options].concat();
    let script = place.expect(0, &words);
    for line in [
        "#SBATCH --job-name=sharded",
        "#SBATCH --ntasks=3",
        "#SBATCH --ntasks-per-node=2",
        "#SBATCH --cpus-per-task=4",
        "#SBATCH --time=10:00",
    ] {
        assert!(script.lines().any(|l| l == line), "{line}: {script}");
    }
    fs::write(place.path("load.sh"), script).unwrap();
    fs::create_dir(place.path("bin")).unwrap();
    fs::write(place.path("bin/srun"), FAKE_SRUN).unwrap();
    fs::set_permissions(place.path("bin/srun"), fs::Permissions::from_mode(0o755)).unwrap();
    let mut batch = Command::new("bash");
    batch
        .arg("load.sh")
        .current_dir(place.path(""))
        .env_clear()
        .env(
            "PATH",
            format!("{}:/usr/bin:/bin", place.path("bin").display()),
        )
        .env("SLURM_JOB_ID", "77");
    let mut batch = batch
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert!(matches!(wait(&mut batch), 0 | 90));
    assert_matches_one_process(&place, "runs/sharded-77");
    let refused = place.run(&["slurm", "plan.toml", "--shards", "3", "--partition", "a b"]);
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn valid_kubernetes_manifests_run_all_shards() {
    let place = Place::new();
    place.certificates();
    let server = place.serve(&[&["score", "--delay", "0s"][..], &SERVER_MTLS].concat());
    plan(&place, &server, 300, 3);
    let rows = "data/rows.csv";
    fs::create_dir(place.path("data")).unwrap();
    let secured = place
        .read("plan.toml")
        .replace(&server.plaintext(), &server.tls());
    let tls =
        "[tls]\nca = \"certs/ca.crt\"\ncert = \"certs/client.crt\"\nkey = \"./certs/client.key\"\n";
    let varied = secured.replace("{{seq}}", "{{row.v}}");
    let whole = format!("{varied}\n# öffentlich\n{tls}\n[rows]\nfile = \"{rows}\"\n");
    // Line ends that YAML does not preserve in a text.
    fs::write(place.path(rows), "v\r\n0.5\r\n0.25\r\n").unwrap();
    fs::write(place.path("plan.toml"), whole).unwrap();
    let one = place.run(&["run", "plan.toml", "--out", "one", "-q"]);
    assert!(
        matches!(one.status.code(), Some(0 | 90)),
        "{}",
        stderr_of(&one)
    );
    let words = ["kubernetes", "plan.toml", "--shards", "3"];
    let named = ["--run-id", "R_1"];
    let claim = [
        "--claim",
        "meeting",
        "--namespace",
        "load",
        "--secret",
        "store",
    ];
    let objects = place.expect(0, &[&words[..], &named, &claim].concat());
    for line in [
        "# öffentlich",
        "name: plimsoll-r-1",
        "namespace: \"load\"",
        "name: \"store\"",
    ] {
        assert!(objects.contains(line), "{line}: {objects}");
    }
    // A key appears only in the secret.
    assert!(!objects.contains("PRIVATE KEY"), "{objects}");
    fs::write(place.path("run.yaml"), &objects).unwrap();
    let program = place.command(&[]).get_program().to_owned();
    let mut pods = python(&place, "kubernetes_pods.py");
    let output = run_successfully(pods.arg("run.yaml").arg(program).arg("nodes"));
    let printed = text(&output.stdout);
    let codes = printed.lines().last().unwrap();
    assert!(matches!(codes, "0 0 0" | "90 90 90"), "{printed}");
    assert_matches_one_process(&place, "nodes/claim/runs/R_1");

    // Manifests for a bucket are only checked against the schema.
    let bucket = [
        "--rendezvous",
        "s3://loads/meeting",
        "--service-account",
        "loads",
    ];
    let objects = place.expect(0, &[&words[..], &named, &bucket].concat());
    assert!(!objects.contains("kind: ServiceAccount"), "{objects}");
    assert!(
        objects.contains("plimsoll merge s3://loads/meeting --run-id R_1"),
        "{objects}"
    );
    for (more, refused) in [
        (
            &["--rendezvous", "file:///tmp/meeting"][..],
            "a separate folder in each pod",
        ),
        (&[], "--rendezvous <URL>"),
        (&["--claim", "meeting", "--run-id", "../r"], "--run-id"),
    ] {
        let output = place.run(&[&words[..], more].concat());
        assert_eq!(output.status.code(), Some(2));
        let printed = stderr_of(&output);
        assert!(printed.contains(refused), "{printed}");
    }
    let outside = place
        .read("plan.toml")
        .replace("certs/ca.crt", "/etc/ca.crt");
    fs::write(place.path("plan.toml"), outside).unwrap();
    let output = place.run(&[&words[..], &named, &bucket].concat());
    let printed = stderr_of(&output);
    assert!(
        printed.contains("tls.ca: /etc/ca.crt is not under the current directory"),
        "{printed}"
    );
}

/// A fake `kubectl` whose cluster is this machine, in a folder for PATH.
fn write_fake_kubectl(place: &Place) {
    let python = peer("venv/bin/python");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/peers/kubectl.py");
    let program = place.command(&[]).get_program().to_owned();
    let text = format!(
        "#!/bin/sh\nexec {} {} {} {} \"$@\"\n",
        python.display(),
        script.display(),
        program.to_str().unwrap(),
        place.path("cluster").display()
    );
    fs::create_dir(place.path("bin")).unwrap();
    let file = place.path("bin/kubectl");
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn kubernetes_apply_returns_run_exit_code() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "0s"]);
    plan(&place, &server, 300, 3);
    place.run(&["run", "plan.toml", "--out", "one", "-q"]);
    let store = Server::start(&mut Command::new(peer("bin/go-s3")));
    let meeting = Rendezvous::bucket(&store);
    let apply = |id: &str, plan: &str| {
        let words = [
            "kubernetes",
            plan,
            "--shards",
            "3",
            "--rendezvous",
            &meeting.url,
            "--run-id",
            id,
            "--namespace",
            "load",
            "--apply",
            "--out",
            id,
        ];
        let mut command = meeting.command(&place, &words);
        // Another kubectl may be installed on this machine.
        support::output(command.env("PATH", place.path("bin")), support::MAX_WAIT)
    };
    let missing = apply("r0", "plan.toml");
    assert_eq!(missing.status.code(), Some(1));
    let printed = stderr_of(&missing);
    assert!(printed.contains("can't start kubectl"), "{printed}");
    write_fake_kubectl(&place);
    let output = apply("r1", "plan.toml");
    let printed = stderr_of(&output);
    assert!(
        matches!(output.status.code(), Some(0 | 90)),
        "{}{printed}",
        text(&output.stdout)
    );
    assert!(text(&output.stdout).contains("from 3 shards"), "{printed}");
    assert_matches_one_process(&place, "r1");
    // A run that misses its objective ends with 99, on the cluster as here.
    let missed = place
        .read("plan.toml")
        .replace("errors = \"< 0.1%\"", "p50 = \"< 1ns\"");
    fs::write(place.path("missed.toml"), missed).unwrap();
    fs::rename(place.path("cluster"), place.path("before")).unwrap();
    let output = apply("r2", "missed.toml");
    let printed = stderr_of(&output);
    assert!(
        matches!(output.status.code(), Some(99 | 90)),
        "{:?} {printed}",
        output.status
    );
    assert_eq!(place.run_json("r2")["shards"].as_array().unwrap().len(), 3);
}

#[test]
fn kubernetes_refuses_plans_with_literal_secrets() {
    let place = Place::new();
    let manifests = |target: &str, headers: &str| {
        let plan = format!(
            "target = \"http://127.0.0.1:1/{target}\"\n[call.http.headers]\n{headers}\n[load]\nclients = 2\ncalls = 2\n"
        );
        // A body is a key of the section, not a header field.
        let plan = match headers.strip_prefix("body = ") {
            Some(_) => plan.replace("[call.http.headers]", "[call.http]"),
            None => plan,
        };
        fs::write(place.path("plan.toml"), plan).unwrap();
        let shards = ["--shards", "2", "--rendezvous", "s3://loads/meeting"];
        place.run(&[&["kubernetes", "plan.toml"][..], &shards].concat())
    };
    for (target, headers, name) in [
        ("", "authorization = \"Bearer CANARY\"", "authorization"),
        ("", "x-custom = \"Bearer CANARY\"", "x-custom"),
        ("?token=CANARY", "accept = \"*/*\"", "target"),
        ("#access_token=CANARY", "accept = \"*/*\"", "target"),
        ("", "body = '{\"password\":\"CANARY\"}'", "body"),
    ] {
        let refused = manifests(target, headers);
        assert_eq!(refused.status.code(), Some(2), "{headers}");
        let printed = format!("{}{}", text(&refused.stdout), stderr_of(&refused));
        assert!(
            printed.contains(&format!("`{name}` contains a secret")),
            "{printed}"
        );
        assert!(!printed.contains("CANARY"), "{printed}");
    }
    let read = "authorization = { env = \"AUTH\" }\npass-through = \"1\"";
    let body = "body = '{\"password\":\"$PLIMSOLL_BODY_PASSWORD\"}'";
    for (target, settings) in [
        ("?token=$TOKEN", read),
        ("#section", "accept = \"*/*\""),
        ("", body),
    ] {
        let accepted = manifests(target, settings);
        assert_eq!(accepted.status.code(), Some(0), "{accepted:?}");
    }
}

/// The fragment of a step's target is not sent, and is left out of saved plans.
#[test]
fn fragments_of_targets_are_no_secrets() {
    let place = Place::new();
    let plan = |fragment: &str| {
        let plan = format!(
            "target = \"http://127.0.0.1:1/\"\n[load]\nclients = 2\ncalls = 2\n[[steps]]\npath = \"/a\"\n\
             [[steps]]\ntarget = \"http://127.0.0.1:2/b#{fragment}\"\n"
        );
        fs::write(place.path("plan.toml"), plan).unwrap();
        let shards = ["--shards", "2", "--rendezvous", "s3://loads/meeting"];
        place.run(&[&["kubernetes", "plan.toml"][..], &shards].concat())
    };
    let accepted = plan("top");
    assert_eq!(accepted.status.code(), Some(0), "{accepted:?}");
    let refused = plan("access_token=CANARY");
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(!stderr_of(&refused).contains("CANARY"), "{refused:?}");
}
