//! Records of a load: the counts and times of its calls, and how far the generator's lateness may have changed them.

pub mod instrument;
pub mod record;
pub mod recorder;
