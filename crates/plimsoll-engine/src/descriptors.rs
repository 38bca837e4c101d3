//! How many files this process may have open (`ulimit -n`). Read by whoever plans connections or explains that there
//! are no more. A sandbox may refuse to say.

use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The limit of open files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorLimit {
    /// As many as this process may have open now; [`u64::MAX`]: there is no limit.
    pub current: u64,
    /// The limit to which this process may raise it.
    pub maximum: u64,
}

impl DescriptorLimit {
    /// Returns the limit of this process.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn of_process() -> io::Result<DescriptorLimit> {
        let (current, maximum) = getrlimit(Resource::RLIMIT_NOFILE)?;
        Ok(DescriptorLimit { current, maximum })
    }

    /// Raises the limit of this process as far as it may.
    ///
    /// # Errors
    /// When the system refuses it.
    pub fn raise(self) -> io::Result<()> {
        Ok(setrlimit(
            Resource::RLIMIT_NOFILE,
            self.maximum,
            self.maximum,
        )?)
    }
}

/// Returns how many files this process may have open; [`u64::MAX`] where there is no limit, or the system does not say.
pub fn descriptor_limit() -> u64 {
    DescriptorLimit::of_process().map_or(u64::MAX, |limit| limit.current)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_that_of_proc() {
        let limit = DescriptorLimit::of_process().unwrap();
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
