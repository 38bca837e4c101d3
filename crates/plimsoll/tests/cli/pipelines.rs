//! The pipelines for CI servers in `packaging/ci`, and those of docs/ci.md: they conform to the schemas of their
//! servers, and their steps run a plan here, keep its documents, and end with its exit code.

use crate::support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use support::{MAX_WAIT, Place, Server, output, text};

/// The documents that every pipeline keeps.
const DOCUMENTS: [&str; 4] = ["junit.xml", "report.md", "comment.md", "report.html"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).expect(file)
}

/// Returns a pipeline as its server reads it. Fails if it does not conform to the server's `schema`.
#[track_caller]
fn pipeline(schema: &str, file: &Path, inputs: &[&str]) -> Value {
    let python = root().join(".peers/venv/bin/python");
    assert!(python.exists(), "no .peers/venv: run `make setup`");
    let mut reader = Command::new(python);
    reader
        .arg(root().join("tests/peers/pipelines.py"))
        .args([schema.as_ref(), file.as_os_str()])
        .args(inputs);
    let done = output(&mut reader, MAX_WAIT);
    let error = text(&done.stderr);
    assert!(done.status.success(), "{}: {error}", file.display());
    serde_json::from_slice(&done.stdout).expect("JSON")
}

/// A checkout on a CI server: a service, plans with different verdicts, and `plimsoll` in the path.
struct Checkout {
    place: Place,
    _server: Server,
}

impl Checkout {
    fn new() -> Checkout {
        let place = Place::new();
        let server = place.serve(&["score"]);
        let objectives = [
            ("met", "\"errors\" = \"< 50%\""),
            // No machine makes as many calls, whatever the generator does.
            ("missed", "\"rate\" = \"> 1000000/s\""),
            // A p99.99 needs many thousands of calls.
            ("inconclusive", "\"p99.99\" = \"< 60s\""),
        ];
        for (name, objective) in objectives {
            let plan = format!(
                "name = \"{name}\"\ntarget = \"{}\"\n[call.grpc]\nmethod = \"score.ScoreService/GetScore\"\n\
                 message = {{ json = \"[0.1]\" }}\n[load]\nclients = 2\ncalls = 100\n[objective]\n{objective}\n",
                server.plaintext()
            );
            fs::write(place.path(&format!("{name}.toml")), plan).expect("writable");
        }
        let checkout = Checkout {
            place,
            _server: server,
        };
        let plimsoll = checkout.tool("plimsoll");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_plimsoll"), plimsoll).expect("writable");
        checkout
    }

    /// Returns the path of a program that steps find by its name.
    fn tool(&self, name: &str) -> PathBuf {
        let tools = self.place.path(".tools");
        fs::create_dir_all(&tools).expect("writable");
        tools.join(name)
    }

    /// Runs a step as CI servers do: with a shell that ends at the first command that fails.
    fn run(&self, shell: &[&str], script: &str, variables: &BTreeMap<String, String>) -> Output {
        let path = std::env::var("PATH").unwrap_or_default();
        let tools = self.place.path(".tools");
        let mut step = Command::new(shell[0]);
        step.args(&shell[1..])
            .arg(script)
            .current_dir(self.place.path("."))
            .env_clear()
            .env("PATH", format!("{}:{path}", tools.display()))
            .envs(variables);
        output(&mut step, MAX_WAIT)
    }

    /// Checks the documents of a step that has ended, and removes them.
    #[track_caller]
    fn take_documents(&self, done: &Output, expected: i32) {
        let printed = text(&done.stdout) + &text(&done.stderr);
        assert_eq!(done.status.code(), Some(expected), "{printed}");
        let folder = self.place.path("load-test");
        for document in DOCUMENTS {
            assert!(folder.join(document).is_file(), "{document}: {printed}");
        }
        let comment = self.place.read("load-test/comment.md");
        assert!(comment.lines().count() <= 30, "{comment}");
        let verdict = match expected {
            0 => "✅ pass",
            90 => "⚠️ inconclusive",
            _ => "❌ fail",
        };
        assert!(comment.contains(verdict), "{comment}");
        assert!(comment.contains("load-test/report.html"), "{comment}");
        fs::remove_dir_all(folder).expect("there");
    }
}

/// The plans of a checkout, each with the exit code of its run.
const PLANS: [(&str, i32); 3] = [("met", 0), ("missed", 99), ("inconclusive", 90)];

fn no_variables() -> BTreeMap<String, String> {
    BTreeMap::new()
}

#[test]
fn gitlab_job_ends_with_exit_code() {
    let checkout = Checkout::new();
    for (plan, code) in PLANS {
        let plan = format!("plan={plan}.toml");
        let template = root().join("packaging/ci/gitlab.yml");
        let inputs = [plan.as_str(), "flags=--clients '1'"];
        let pipeline = pipeline("gitlab-ci", &template, &inputs);
        let job = &pipeline["load-test"];
        let lines = job["script"].as_array().expect("a script");
        let lines: Vec<&str> = lines.iter().filter_map(Value::as_str).collect();
        let shell = ["bash", "-eo", "pipefail", "-c"];
        let done = checkout.run(&shell, &lines.join("\n"), &no_variables());
        checkout.take_documents(&done, code);
        let artifacts = &job["artifacts"];
        assert_eq!(artifacts["when"], "always");
        assert_eq!(artifacts["reports"]["junit"], "load-test/junit.xml");
    }
}

/// A template can run any command that writes documents, and without a plan.
#[test]
fn gitlab_job_runs_whole_command_line() {
    let template = root().join("packaging/ci/gitlab.yml");
    let command = "command=compare --live old=grpc://127.0.0.1:1 new=grpc://127.0.0.1:2 \
                   -m score.ScoreService/GetScore --fail-if 'p99 +3%'";
    let inputs = [command, "job=gate", "stage=load", "flags=--dry-run"];
    let pipeline = pipeline("gitlab-ci", &template, &inputs);
    let gate = &pipeline["gate"];
    assert_eq!(gate["stage"], "load");
    let line = gate["script"][2].as_str().expect("a line");
    let checkout = Checkout::new();
    fs::create_dir(checkout.place.path("load-test")).expect("writable");
    let done = checkout.run(&["bash", "-ec"], line, &no_variables());
    let printed = text(&done.stdout) + &text(&done.stderr);
    assert_eq!(done.status.code(), Some(0), "{printed}");
    assert!(printed.contains("p99 +3%"), "{printed}");
}

#[test]
fn buildkite_step_annotates_and_ends_with_code() {
    let file = root().join("packaging/ci/buildkite.yml");
    let pipeline = pipeline("buildkite", &file, &[]);
    let step = &pipeline["steps"][0];
    // The upload replaces variables, and leaves one dollar of two.
    let command = step["command"].as_str().expect("a command");
    assert!(!command.replace("$$", "").contains('$'), "{command}");
    let command = command.replace("$$", "$");
    assert_eq!(step["soft_fail"][0]["exit_status"], 90);
    let kept = step["artifact_paths"].as_str().expect("a pattern");
    let folder = pipeline["env"]["LOAD_FOLDER"].as_str().expect("a folder");
    assert_eq!(kept, format!("{folder}/**/*"));
    let checkout = Checkout::new();
    let agent = checkout.tool("buildkite-agent");
    fs::write(
        &agent,
        "#!/bin/sh\necho \"$@\" > arguments\ncat > annotation\n",
    )
    .expect("writable");
    make_executable(&agent);
    let styles = ["success", "error", "warning"];
    for ((plan, code), style) in PLANS.into_iter().zip(styles) {
        let mut variables: BTreeMap<String, String> = BTreeMap::new();
        variables.insert("LOAD_PLAN".to_owned(), format!("{plan}.toml"));
        variables.insert("LOAD_FOLDER".to_owned(), folder.to_owned());
        let done = checkout.run(&["bash", "-ec"], &command, &variables);
        let comment = checkout.place.read("load-test/comment.md");
        checkout.take_documents(&done, code);
        assert_eq!(checkout.place.read("annotation"), comment);
        let arguments = checkout.place.read("arguments");
        assert!(
            arguments.contains(&format!("--style {style}")),
            "{arguments}"
        );
    }
    // Without a plan there is nothing to annotate, and the code is still Plimsoll's.
    let variables = [("LOAD_PLAN", "missing.toml"), ("LOAD_FOLDER", folder)];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let done = checkout.run(&["bash", "-ec"], &command, &variables.into());
    assert_eq!(done.status.code(), Some(1));
}

fn make_executable(file: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(file, mode).expect("ours");
}

/// Returns the scripts of a Jenkinsfile: texts between triple quotes.
fn jenkins_scripts(text: &str) -> Vec<&str> {
    text.split("'''").skip(1).step_by(2).collect()
}

#[test]
fn jenkins_step_ends_with_exit_code() {
    let file = read("packaging/ci/Jenkinsfile");
    for (open, close) in [('{', '}'), ('(', ')')] {
        let count = |bracket| file.matches(bracket).count();
        assert_eq!(count(open), count(close), "{open}{close}");
    }
    let scripts = jenkins_scripts(&file);
    let [install, load] = scripts[..] else {
        panic!("not two scripts: {scripts:?}");
    };
    assert!(
        file.contains("sh(returnStatus: true, script: '''"),
        "{file}"
    );
    let checkout = Checkout::new();
    let shell = ["sh", "-xec"];
    let done = checkout.run(&shell, install, &no_variables());
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    assert!(!checkout.place.path(".plimsoll").exists());
    for (plan, code) in PLANS {
        let variables = [
            ("LOAD_PLAN", format!("{plan}.toml")),
            ("LOAD_FOLDER", "load-test".to_owned()),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value));
        let done = checkout.run(&shell, load, &variables.into());
        checkout.take_documents(&done, code);
    }
}

/// Returns the page's code blocks of a language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    let blocks = page.split(fence.as_str()).skip(1);
    blocks
        .filter_map(|rest| Some(rest.split_once("```")?.0))
        .collect()
}

#[test]
fn page_pipelines_conform_to_schemas() {
    let place = Place::new();
    let page = read("docs/ci.md");
    let yaml = blocks(&page, "yaml");
    let schemas = ["github-workflows", "gitlab-ci"];
    assert_eq!(yaml.len(), schemas.len());
    for (block, schema) in yaml.into_iter().zip(schemas) {
        let file = place.path(schema);
        fs::write(&file, block).expect("writable");
        let read = pipeline(schema, &file, &[]);
        let Some(inputs) = read.pointer("/include/0/inputs") else {
            continue;
        };
        // The template takes the inputs that the page gives.
        let inputs = inputs.as_object().expect("inputs").iter();
        let inputs: Vec<String> = inputs
            .map(|(name, value)| format!("{name}={}", value.as_str().expect("text")))
            .collect();
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        pipeline(
            "gitlab-ci",
            &root().join("packaging/ci/gitlab.yml"),
            &inputs,
        );
    }
    pipeline("github-actions", &root().join("action/action.yml"), &[]);
    for script in blocks(&page, "groovy") {
        let flags = jenkins_scripts(script)[0].split_whitespace();
        let file = read("packaging/ci/Jenkinsfile");
        for flag in flags.filter(|word| word.starts_with("--")) {
            assert!(file.contains(flag), "{flag}");
        }
    }
}

/// The commands of the page that the test of pages does not run are valid, too.
#[test]
fn page_gate_is_valid_command() {
    let page = read("docs/ci.md");
    let gates = blocks(&page, "sh").into_iter();
    let gates: Vec<&str> = gates
        .filter(|block| block.contains("compare --live"))
        .collect();
    let [gate] = gates[..] else {
        panic!("not one gate: {gates:?}");
    };
    let checkout = Checkout::new();
    fs::create_dir(checkout.place.path("load-test")).expect("writable");
    let line = format!("{} --dry-run", gate.trim());
    let done = checkout.run(&["bash", "-ec"], &line, &no_variables());
    let printed = text(&done.stdout) + &text(&done.stderr);
    assert_eq!(done.status.code(), Some(0), "{printed}");
    assert!(printed.contains("p99 +3%"), "{printed}");
}
