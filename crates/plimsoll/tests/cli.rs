//! The command line as people meet it: `tests/cli/*.trycmd`, run as written there.
//! `TRYCMD=overwrite cargo test -p plimsoll --test cli` writes down what is printed now.

#[test]
fn commands_print_what_is_written_down() {
    trycmd::TestCases::new()
        .env("NO_COLOR", "1")
        .case("tests/cli/*.trycmd");
}
