//! Renders the functions in which the rungs (variants) of a ladder differ.

use std::fmt::Write as _;
use std::path::Path;

use plimsoll_model::comparisons::ladder::LadderRecord;

use crate::sections::profile::{
    DIFFERENCES_NOTE, LadderProfiles, MAX_TERMINAL_FUNCTIONS, heading, rung_facts, shorten_names,
};
use crate::terminal::{TerminalOptions, write_list};

/// Renders the profiles of the ladder in `dir` for the terminal; empty if its processes were not sampled.
pub fn render_profiles(record: &LadderRecord, dir: &Path, options: &TerminalOptions) -> String {
    let profiles = match LadderProfiles::read(record, dir) {
        Ok(Some(profiles)) => profiles,
        Ok(None) => return String::new(),
        Err(problem) => return format!("\nThe profile can't be read: {problem}\n"),
    };
    let mut out = String::new();
    let first = record.rungs.first().map_or("", |rung| &rung.name);
    for compared in profiles.comparisons(record) {
        let heading = format!("{}: {} and {first}", heading(compared.end), compared.name);
        let _ = writeln!(out, "\n{}", options.bold(&heading));
        let table = shorten_names(compared.table(first, MAX_TERMINAL_FUNCTIONS));
        out += &table.render_unwrapped(options.width);
    }
    let rungs = profiles.rungs(record);
    let all = rungs.flat_map(|(rung, profile)| rung_facts(rung, profile));
    out.push('\n');
    write_list(&mut out, all, options);
    write_list(&mut out, [DIFFERENCES_NOTE], options);
    out
}
