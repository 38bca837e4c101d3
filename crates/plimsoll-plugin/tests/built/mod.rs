//! Builds the plugins that tests load from their sources, in C with `cc` and in Rust with `rustc`.
//!
//! Tests of other crates include this file by its path.

#![allow(dead_code, reason = "a test binary uses what it needs of this")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

fn crate_dir() -> PathBuf {
    // All crates are siblings, whichever one the test belongs to.
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../plimsoll-plugin")
}

fn run_successfully(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Builds C source into `folder` with compiler `flags` such as `-DNAME`.
pub(crate) fn build_c(source: &Path, folder: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let made = folder.join(name);
    let mut command = Command::new("cc");
    command
        .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"])
        .args(["-O1", "-fPIC", "-shared", "-fvisibility=hidden"])
        .args(flags)
        .arg("-I")
        .arg(crate_dir().join("include"))
        .arg("-o")
        .arg(&made)
        .arg(source);
    run_successfully(&mut command);
    made
}

/// Builds the example in C.
pub(crate) fn build_c_example(folder: &Path) -> PathBuf {
    let source = crate_dir().join("examples/x_example.c");
    build_c(&source, folder, "x_example.so", &[])
}

/// Builds the plugin that returns whatever it reads, or one of the invalid plugins.
pub(crate) fn nonsense(folder: &Path, name: &str, flags: &[&str]) -> PathBuf {
    build_c(&crate_dir().join("tests/nonsense.c"), folder, name, flags)
}

/// Builds the example in Rust, once for all tests of a binary.
pub(crate) fn built_rust_example() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(build_rust_example).clone()
}

/// Builds the example with the compiler itself, because cargo would also build the dev-dependencies.
fn build_rust_example() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_CRATE_NAME"));
    std::fs::create_dir_all(&folder).expect("a folder to build in");
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let build = |source: &str, kind: &str, name: &str, flags: &[&str]| {
        let mut command = Command::new(&compiler);
        command
            .args(["--edition", "2024", "-O", "--crate-type", kind])
            .args(["--crate-name", name, "--out-dir"])
            .arg(&folder)
            .args(flags)
            .arg("-L")
            .arg(&folder)
            .arg(crate_dir().join(source));
        run_successfully(&mut command);
    };
    build("src/lib.rs", "rlib", "plimsoll_plugin", &[]);
    let uses = ["--extern", "plimsoll_plugin"];
    build("examples/x_example.rs", "cdylib", "x_example", &uses);
    folder.join("libx_example.so")
}
