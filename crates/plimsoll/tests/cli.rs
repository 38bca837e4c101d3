//! The command line as people meet it: `tests/cli/*.trycmd`, and the mistakes of `docs/errors.md`, run as
//! written there. `TRYCMD=overwrite cargo test -p plimsoll --test cli` writes down what is printed now.

/// Removes the run directories that commands leave whose target can't be reached, whether or not the test passes.
struct Leftovers;

impl Drop for Leftovers {
    fn drop(&mut self) {
        for left in ["gone", "runs"] {
            let _ = std::fs::remove_dir_all(format!("../../docs/errors.in/{left}"));
        }
    }
}

#[test]
fn commands_print_documented_output() {
    let _leftovers = Leftovers;
    trycmd::TestCases::new()
        .env("NO_COLOR", "1")
        .case("tests/cli/*.trycmd")
        .case("../../docs/errors.md")
        .run();
}
