//! What people bring along from other tools: the variables of older load scripts, and the words of other tools'
//! command lines. Each protocol lists its own ([`crate::registry::Entry`]); the binary understands them.

pub mod lines;

/// A variable that older scripts use, and the flag's variable that it stands for.
#[derive(Clone, Copy, Debug)]
pub struct Alias {
    /// What the other tool calls it.
    pub name: &'static str,
    /// Ours of the same meaning.
    pub variable: &'static str,
    /// How its value becomes ours.
    pub form: Form,
    /// The commands that understand it; empty: all of them.
    pub commands: &'static [&'static str],
}

/// What the value of an [`Alias`] is.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// A value as ours.
    Plain {
        /// The unit of a bare number.
        unit: &'static str,
    },
    /// A URL, whose scheme and port may be left out.
    Url([Web; 2]),
}

/// A scheme of the web, ours in its place, and the port that it implies.
pub type Web = (&'static str, &'static str, u16);

impl Alias {
    /// Makes an alias for every command; `unit` is appended to the value.
    pub const fn new(name: &'static str, variable: &'static str, unit: &'static str) -> Alias {
        Alias::of(&[], name, variable, Form::Plain { unit })
    }

    /// Makes an alias for these commands alone.
    pub const fn of(
        commands: &'static [&'static str],
        name: &'static str,
        variable: &'static str,
        form: Form,
    ) -> Alias {
        Alias {
            name,
            variable,
            form,
            commands,
        }
    }
}

/// Another load tool, of whose command lines a command understands the flags.
#[derive(Debug)]
pub struct Tool {
    /// What the other tool calls it.
    pub name: &'static str,
    /// The protocol as the tool has it, in `-p PROTOCOL` and `PROTOCOL://HOST`.
    pub protocol: &'static str,
    /// Flags, ours in their place, and the unit of their bare numbers.
    pub numbered: &'static [(&'static str, &'static str, &'static str)],
    /// Its flag for the number of threads, none of which carries more than its share of the connections.
    pub threads: &'static str,
}
