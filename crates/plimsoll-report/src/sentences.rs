//! Text in sentences: the lines that end a command, and the explanation of a run.

pub mod closing;
pub mod explanation;
