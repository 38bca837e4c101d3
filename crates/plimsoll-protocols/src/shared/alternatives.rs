//! Checks for keys of a plan that exclude each other.

use plimsoll_model::spec::Problems;

/// If two of these keys of `table` are given, reports the second one and returns true.
pub(crate) fn report_conflict(problems: &mut Problems, table: &str, keys: &[(&str, bool)]) -> bool {
    let mut given = keys.iter().filter(|(_, is_given)| *is_given);
    let (Some((first, _)), Some((second, _))) = (given.next(), given.next()) else {
        return false;
    };
    let problem = format!("can't be combined with {table}.{first}: use one of the two");
    problems.add(format!("{table}.{second}"), problem);
    true
}
