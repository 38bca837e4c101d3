//! Collects the information that `plimsoll --version` prints: commit, build, features and library versions.
//!
//! The output does not depend on the time or machine of the build, so that builds are reproducible. Git is not
//! required: a crate from a registry has its commit in `.cargo_vcs_info.json`, and packagers set BUILD_COMMIT and
//! BUILD_DATE. BUILD_STATIC declares that the linker links statically. Debug builds don't record the commit, so that
//! committing does not cause a rebuild.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Libraries that influence measurements; `--version` prints their versions.
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
    set_variable("VERSION_BUILD", &build_description());
    set_variable("VERSION_FEATURES", &features());
    set_variable("VERSION_LIBRARIES", &libraries(&here, &root));
}

/// Sets an environment variable for the compiler. Line breaks in the value are replaced by spaces.
fn set_variable(name: &str, value: &str) {
    println!("cargo::rustc-env={name}={}", value.replace('\n', " "));
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns the commit, its date, and whether the sources were modified, as far as these are known.
fn commit(here: &Path, root: &Path) -> String {
    println!("cargo::rerun-if-env-changed=BUILD_COMMIT");
    println!("cargo::rerun-if-env-changed=BUILD_DATE");
    if let Some(commit) = variable("BUILD_COMMIT") {
        return match variable("BUILD_DATE") {
            Some(date) => format!("{commit} ({date})"),
            None => commit,
        };
    }
    if let Some(commit) = packaged_commit(&here.join(".cargo_vcs_info.json")) {
        return commit;
    }
    if variable("PROFILE").as_deref() != Some("release") {
        return format!("{NOT_RECORDED} in a debug build");
    }
    cloned_commit(root).unwrap_or_else(|| NOT_RECORDED.to_owned())
}

/// Returns the commit of a crate that cargo has packaged.
fn packaged_commit(info: &Path) -> Option<String> {
    let text = fs::read_to_string(info).ok()?;
    println!("cargo::rerun-if-changed={}", info.display());
    let (_, rest) = text.split_once("\"sha1\"")?;
    let sum = rest.split('"').nth(1)?;
    let dirty = text.contains("\"dirty\": true");
    Some(format!("{sum}{}", if dirty { " (modified)" } else { "" }))
}

/// Returns the commit of a Git clone; `None` if `root` is not a clone of Plimsoll, even if it is within another
/// repository.
fn cloned_commit(root: &Path) -> Option<String> {
    /// Paths whose files are compiled into the binary.
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
    // Rerun when HEAD moves: `logs/HEAD` changes even if only the branch that HEAD refers to moves.
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

fn build_description() -> String {
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
    // A static binary has no dynamic loader, so it can't load codec plugins. BUILD_STATIC declares static linking that
    // the compiler's target features don't show.
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

/// Returns names and versions of libraries from the lock file of the package or, if it has none, of the workspace.
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
