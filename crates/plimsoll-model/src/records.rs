//! Records of a load: what calls add up to, and the bounds that the generator's own lateness sets.

pub mod instrument;
pub mod record;
pub mod recorder;
