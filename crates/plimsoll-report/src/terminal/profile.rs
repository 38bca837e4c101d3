//! Renders the functions that spent CPU time.

use std::fmt::Write as _;

use plimsoll_model::runs::profile::RunProfile;
use plimsoll_model::runs::run::Run;

use super::{TerminalOptions, write_list, write_wrapped};
use crate::sections::profile::{
    MAX_TERMINAL_FUNCTIONS, SHARES_NOTE, function_table, heading, measured_cpu_us, sampling_facts,
    shorten_names,
};

pub(super) fn write_profile(out: &mut String, run: &Run, options: &TerminalOptions) {
    let profile = match RunProfile::read(&run.dir) {
        Ok(Some(profile)) => profile,
        Ok(None) => return,
        Err(problem) => {
            write_wrapped(
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
        *out += &shorten_names(function_table(stacks, MAX_TERMINAL_FUNCTIONS))
            .render_unwrapped(options.width);
        if let Some(record) = profile.record.ends.get(end) {
            let all = sampling_facts(&profile.record, record, measured_cpu_us(run, *end));
            write_list(out, all, options);
        }
        write_list(out, [SHARES_NOTE], options);
        out.push('\n');
    }
}
