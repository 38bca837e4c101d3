//! The command line as users see it: runs `tests/cli/*.trycmd` and the mistakes in `docs/errors.md`
//! as written. `TRYCMD=overwrite cargo test -p plimsoll --test cli transcripts` records the current output.

/// Removes the run directories that commands with an unreachable target leave, whether or not the
/// test passes.
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
