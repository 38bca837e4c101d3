//! Flags of `plimsoll http` that a plan writes in another form.

use clap::Args;

/// The parts of a request that flags have in a form of their own.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TypedParts {
    /// A header field, 'name: value'; a value $NAME is taken from the environment ($$ is a plain $); repeatable.
    #[arg(
        id = "headers",
        short = 'H',
        long = "header",
        value_name = "NAME: VALUE"
    )]
    pub(super) headers: Vec<String>,

    /// A part of a form (multipart/form-data), NAME=VALUE or NAME=@FILE; `;type=TYPE` and `;filename=NAME` may follow;
    /// repeatable. Values may have fields; files are sent unchanged.
    #[arg(id = "form", short = 'F', long = "form", value_name = "NAME=VALUE")]
    pub(super) form: Vec<String>,

    /// A header field that an answer must have, 'name: value'; repeatable.
    #[arg(
        id = "expect_headers",
        long = "expect-header",
        value_name = "NAME: VALUE"
    )]
    pub(super) expect_headers: Vec<String>,
}
