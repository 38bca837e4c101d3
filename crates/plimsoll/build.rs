//! Finds out what `plimsoll --version` says of where the binary comes from.
//!
//! Nothing of it changes from one build of a commit to the next, neither time nor machine, and
//! nothing needs git: a crate from a registry carries its commit in `.cargo_vcs_info.json`, and a
//! packager sets BUILD_COMMIT and BUILD_DATE; BUILD_STATIC is for a linker that links statically. A debug build does not look for its commit, so that
//! committing compiles nothing anew.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The libraries whose versions `--version` names: those that a measurement rests on.
const REPORTED_LIBRARIES: [&str; 7] = [
    "aws-lc-rs",
    "h2",
    "hdrhistogram",
    "hyper",
    "rustls",
    "tokio",
    "tonic",
];

const NOT_RECORDED: &str = "not recorded";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let here = PathBuf::from(variable("CARGO_MANIFEST_DIR").unwrap_or_default());
    let root = here.join("../..");
    set_variable("VERSION_COMMIT", &commit(&here, &root));
    set_variable("VERSION_BUILD", &build());
    set_variable("VERSION_FEATURES", &features());
    set_variable("VERSION_LIBRARIES", &libraries(&here, &root));
}

/// A variable for the compiler; it holds one line.
fn set_variable(name: &str, value: &str) {
    println!("cargo::rustc-env={name}={}", value.replace('\n', " "));
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// The commit, its date and whether the sources are those of the commit, as far as that is known.
fn commit(here: &Path, root: &Path) -> String {
    println!("cargo::rerun-if-env-changed=BUILD_COMMIT");
    println!("cargo::rerun-if-env-changed=BUILD_DATE");
    if let Some(commit) = variable("BUILD_COMMIT") {
        return match variable("BUILD_DATE") {
            Some(date) => format!("{commit} ({date})"),
            None => commit,
        };
    }
    if let Some(commit) = packaged(&here.join(".cargo_vcs_info.json")) {
        return commit;
    }
    if variable("PROFILE").as_deref() != Some("release") {
        return format!("{NOT_RECORDED} in a debug build");
    }
    cloned(root).unwrap_or_else(|| NOT_RECORDED.to_owned())
}

/// Returns the commit of a crate that cargo has packaged.
fn packaged(info: &Path) -> Option<String> {
    let text = fs::read_to_string(info).ok()?;
    println!("cargo::rerun-if-changed={}", info.display());
    let (_, rest) = text.split_once("\"sha1\"")?;
    let sum = rest.split('"').nth(1)?;
    let dirty = text.contains("\"dirty\": true");
    Some(format!("{sum}{}", if dirty { " (modified)" } else { "" }))
}

/// Returns the commit of a clone. A repository around a folder that is no clone of ours is not asked.
fn cloned(root: &Path) -> Option<String> {
    /// What a binary is made of.
    const SOURCE_PATHS: [&str; 4] = ["crates", "Cargo.toml", "Cargo.lock", ".cargo"];
    if !root.join(".git").exists() || !root.join("crates/plimsoll/build.rs").is_file() {
        return None;
    }
    let git = |arguments: &[&str]| {
        let done = Command::new("git")
            .args(arguments)
            .current_dir(root)
            .output()
            .ok()?;
        let text = String::from_utf8(done.stdout).ok()?;
        done.status.success().then(|| text.trim().to_owned())
    };
    // The log has a line for everything that moves HEAD.
    for file in ["HEAD", "logs/HEAD"] {
        let path = root.join(git(&["rev-parse", "--git-path", file])?);
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    for source in SOURCE_PATHS {
        println!("cargo::rerun-if-changed={}", root.join(source).display());
    }
    let sum = git(&["rev-parse", "HEAD"])?;
    let date = git(&["log", "-1", "--format=%cs"])?;
    let mut status = vec!["status", "--porcelain", "--"];
    status.extend(SOURCE_PATHS);
    let modified = if git(&status)?.is_empty() {
        ""
    } else {
        ", modified"
    };
    Some(format!("{sum} ({date}{modified})"))
}

fn build() -> String {
    let compiler = variable("RUSTC").unwrap_or_else(|| "rustc".to_owned());
    let version = Command::new(compiler).arg("--version").output();
    let version = version.ok().and_then(|o| String::from_utf8(o.stdout).ok());
    let version = version.as_deref().and_then(|v| v.split_whitespace().nth(1));
    format!(
        "{} for {}, by rustc {}",
        variable("PROFILE").unwrap_or_default(),
        variable("TARGET").unwrap_or_default(),
        version.unwrap_or("of an unknown version"),
    )
}

fn features() -> String {
    let target = variable("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    println!("cargo::rerun-if-env-changed=BUILD_STATIC");
    // What is linked whole has no loader, so it can't load a codec plugin. A linker may do so without the
    // compiler's knowledge, and then who calls it says so.
    let is_static = target.split(',').any(|feature| feature == "crt-static")
        || variable("BUILD_STATIC").is_some();
    let plugins = if is_static {
        "static, without codec plugins"
    } else {
        "codec plugins"
    };
    match variable("CARGO_FEATURE_FAULT") {
        Some(_) => format!("{plugins}, fault points"),
        None => plugins.to_owned(),
    }
}

/// As the lock file has them: that of the package, or that of the clone.
fn libraries(here: &Path, root: &Path) -> String {
    let files = [here.join("Cargo.lock"), root.join("Cargo.lock")];
    let Some((file, text)) = files
        .iter()
        .find_map(|file| Some((file, fs::read_to_string(file).ok()?)))
    else {
        return NOT_RECORDED.to_owned();
    };
    println!("cargo::rerun-if-changed={}", file.display());
    let mut known = Vec::new();
    for package in text.split("[[package]]") {
        let value = |key: &str| {
            let line = package.lines().find(|line| line.starts_with(key))?;
            line.split('"').nth(1)
        };
        if let (Some(name), Some(version)) = (value("name = "), value("version = "))
            && REPORTED_LIBRARIES.contains(&name)
        {
            known.push(format!("{name} {version}"));
        }
    }
    known.join(", ")
}
