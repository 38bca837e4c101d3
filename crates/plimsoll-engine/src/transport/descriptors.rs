//! The limit of open files (`ulimit -n`), used to plan connections and to explain shortages. A sandbox may
//! refuse to report it.

use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The limit of open files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorLimit {
    /// The current (soft) limit; [`u64::MAX`] if there is none.
    pub current: u64,
    /// The maximum (hard) limit to which this process may raise it.
    pub maximum: u64,
}

impl DescriptorLimit {
    /// Returns the limit of this process.
    ///
    /// # Errors
    /// Returns an error if the system does not report the limit.
    pub fn for_this_process() -> io::Result<DescriptorLimit> {
        let (current, maximum) = getrlimit(Resource::RLIMIT_NOFILE)?;
        Ok(DescriptorLimit { current, maximum })
    }

    /// Raises the soft limit of this process to the hard limit.
    ///
    /// # Errors
    /// Returns an error if the system refuses the change.
    pub fn raise(self) -> io::Result<()> {
        Ok(setrlimit(
            Resource::RLIMIT_NOFILE,
            self.maximum,
            self.maximum,
        )?)
    }
}

/// Returns how many files this process may have open; [`u64::MAX`] if there is no limit or the system does not report
/// it.
pub fn descriptor_limit() -> u64 {
    DescriptorLimit::for_this_process().map_or(u64::MAX, |limit| limit.current)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptor_limit_matches_proc() {
        let limit = DescriptorLimit::for_this_process().unwrap();
        let all = std::fs::read_to_string("/proc/self/limits").unwrap();
        let line = all.lines().find(|line| line.starts_with("Max open files"));
        let mut numbers = line
            .unwrap()
            .split_whitespace()
            .filter_map(|word| word.parse().ok());
        assert_eq!(numbers.next(), Some(limit.current));
        assert_eq!(numbers.next(), Some(limit.maximum));
        assert_eq!(descriptor_limit(), limit.current);
    }
}
