//! Support for users of other tools: the environment variables of older load scripts, and the flags of other tools'
//! command lines. Each protocol lists its own ([`crate::registry::CommandEntry`]); the binary translates them.

pub mod cipher_names;
pub mod command_lines;

/// An environment variable of older load scripts, and the variable of Plimsoll that it sets.
#[derive(Clone, Copy, Debug)]
pub struct VariableAlias {
    /// The variable's name in the older scripts.
    pub name: &'static str,
    /// The variable of Plimsoll with the same meaning.
    pub variable: &'static str,
    /// How the variable's value is converted.
    pub conversion: AliasConversion,
    /// The commands that accept the variable; empty means all.
    pub commands: &'static [&'static str],
}

/// The conversion of the value of an alias.
#[derive(Clone, Copy, Debug)]
pub enum AliasConversion {
    /// The value is used as it is.
    Plain {
        /// The unit that is appended to a bare number.
        unit: &'static str,
    },
    /// A URL, whose scheme and port may be missing.
    Url([SchemeMapping; 2]),
}

/// `http://` or `https://`, the scheme that replaces it, and the default port.
pub type SchemeMapping = (&'static str, &'static str, u16);

impl VariableAlias {
    /// Makes an alias for every command; `unit` is appended to a bare number.
    pub const fn new(
        name: &'static str,
        variable: &'static str,
        unit: &'static str,
    ) -> VariableAlias {
        VariableAlias::for_commands(&[], name, variable, AliasConversion::Plain { unit })
    }

    /// Makes an alias for these commands only.
    pub const fn for_commands(
        commands: &'static [&'static str],
        name: &'static str,
        variable: &'static str,
        form: AliasConversion,
    ) -> VariableAlias {
        VariableAlias {
            name,
            variable,
            conversion: form,
            commands,
        }
    }
}

/// Another load tool whose flags a command understands.
#[derive(Debug)]
pub struct ForeignTool {
    /// The tool's name.
    pub name: &'static str,
    /// The tool's name for the protocol, as in `-p PROTOCOL` and `PROTOCOL://HOST`.
    pub protocol: &'static str,
    /// The tool's flags that take numbers: the flag, Plimsoll's equivalent, and the unit that is appended to a bare
    /// number.
    pub number_flags: &'static [(&'static str, &'static str, &'static str)],
    /// The tool's flag for the number of threads, which is translated into a minimum number of connections.
    pub threads_flag: &'static str,
}
