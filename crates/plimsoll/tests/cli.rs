//! The command line as people meet it: `tests/cli/*.trycmd`, and the mistakes of `docs/errors.md`, run as
//! written there. `TRYCMD=overwrite cargo test -p plimsoll --test cli` writes down what is printed now.

#[test]
fn commands_print_what_is_written_down() {
    trycmd::TestCases::new()
        .env("NO_COLOR", "1")
        .case("tests/cli/*.trycmd")
        .case("../../docs/errors.md")
        .run();
    // A target that can't be reached leaves a run directory with the reason.
    for left in ["gone", "runs"] {
        let _ = std::fs::remove_dir_all(format!("../../docs/errors.in/{left}"));
    }
}
