//! Builds subcommands from the entries of a registry, such as the registry of protocols. Each subcommand has its own
//! flags and the flags common to all entries.

use std::fmt::Debug;

use clap::error::{Error, ErrorKind};
use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand};

/// An entry of a registry that becomes a subcommand.
pub(crate) trait RegistryEntry: Debug + Sized + 'static {
    /// Flags common to all entries.
    type SharedFlags: Args + Debug;

    fn all() -> &'static [Self];

    fn name(&self) -> &'static str;

    /// Returns the command with its own flags.
    fn command(&self) -> Command;
}

/// The registry entry that the command line selects, with its parsed flags.
#[derive(Debug)]
pub(crate) struct EntryInvocation<T: RegistryEntry> {
    pub(super) entry: &'static T,
    /// Matches of the entry's own flags.
    pub(crate) matches: ArgMatches,
    pub(super) shared: T::SharedFlags,
}

pub(super) fn command<T: RegistryEntry>(of: &T) -> Command {
    let command = of.command();
    let about = command.get_about().cloned().unwrap_or_default();
    T::SharedFlags::augment_args(command).about(about)
}

impl<T: RegistryEntry> EntryInvocation<T> {
    pub(super) fn new(of: &'static T, typed: &ArgMatches) -> Result<EntryInvocation<T>, Error> {
        Ok(EntryInvocation {
            entry: of,
            matches: typed.clone(),
            shared: T::SharedFlags::from_arg_matches(typed)?,
        })
    }
}

impl<T: RegistryEntry> Subcommand for EntryInvocation<T> {
    fn augment_subcommands(outer: Command) -> Command {
        outer.subcommands(T::all().iter().map(command))
    }

    fn augment_subcommands_for_update(outer: Command) -> Command {
        Self::augment_subcommands(outer)
    }

    fn has_subcommand(name: &str) -> bool {
        T::all().iter().any(|of| of.name() == name)
    }
}

impl<T: RegistryEntry> FromArgMatches for EntryInvocation<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<EntryInvocation<T>, Error> {
        let chosen = matches.subcommand().and_then(|(name, typed)| {
            let of = T::all().iter().find(|of| of.name() == name)?;
            Some((of, typed))
        });
        let (of, typed) = chosen.ok_or_else(|| Error::new(ErrorKind::MissingSubcommand))?;
        EntryInvocation::new(of, typed)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = EntryInvocation::from_arg_matches(matches)?;
        Ok(())
    }
}
