//! Writes the tables of a plan.

use std::fmt::Write as _;

/// Returns the plan's tables for flags of a load.
pub(super) fn load_tables(flags: &[String]) -> String {
    let (mut load, mut objectives) = (String::new(), String::new());
    for pair in flags.windows(2) {
        let (flag, value) = (pair[0].as_str(), &pair[1]);
        let _infallible = match flag {
            "--clients" | "--calls" => writeln!(load, "{} = {value}", &flag[2..]),
            "--rate" | "--duration" | "--think" => {
                writeln!(load, "{} = {}", &flag[2..], toml_text(value))
            }
            "--objective" => {
                let (statistic, limit) = value.split_once(' ').unwrap_or((value, ""));
                writeln!(
                    objectives,
                    "{} = {}",
                    toml_text(statistic),
                    toml_text(limit)
                )
            }
            _ => Ok(()),
        };
    }
    if !objectives.is_empty() {
        objectives.insert_str(0, "\n[objective]\n");
    }
    format!("\n[load]\n{load}{objectives}")
}

/// Returns a string in TOML syntax.
pub(super) fn toml_text(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}
