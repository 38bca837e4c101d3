//! Renders the functions that spent CPU time.

use std::fmt::Write as _;

use plimsoll_model::profile::RunProfile;
use plimsoll_model::run::Run;

use super::{TerminalOptions, lines, sentences};
use crate::profile::{
    SHARES_NOTE, TERMINAL_FUNCTIONS, facts, functions, heading, measured_us, shortened,
};

pub(super) fn profile(out: &mut String, run: &Run, options: &TerminalOptions) {
    let profile = match RunProfile::read(&run.dir) {
        Ok(Some(profile)) => profile,
        Ok(None) => return,
        Err(problem) => {
            lines(
                out,
                &format!("The profile can't be read: {problem}"),
                options,
            );
            out.push('\n');
            return;
        }
    };
    for (end, stacks) in &profile.stacks {
        let _ = writeln!(out, "{}", options.bold(&heading(*end)));
        *out += &shortened(functions(stacks, TERMINAL_FUNCTIONS)).unbroken(options.width);
        if let Some(record) = profile.record.ends.get(end) {
            let all = facts(&profile.record, record, measured_us(run, *end));
            sentences(out, all, options);
        }
        sentences(out, [SHARES_NOTE], options);
        out.push('\n');
    }
}
