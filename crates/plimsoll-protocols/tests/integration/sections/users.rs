//! Keys of the load that plans with users refuse.

use super::problems;

/// Loops with users read answers on arrival, so they need no sleep from tick to tick.
#[test]
fn users_refuse_ticks() {
    let plan = "target = \"http://a:1\"\n[[steps]]\nname = \"one\"\n[[steps]]\nname = \"two\"\n\
                [load]\nrate = \"1/s\"\nduration = \"1s\"\ntick = \"1ms\"\n";
    let found = problems(plan);
    assert!(
        found
            .iter()
            .any(|problem| problem.starts_with("`load.tick`: for calls of an open loop")),
        "{found:?}"
    );
}
