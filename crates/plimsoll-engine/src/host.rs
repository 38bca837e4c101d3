//! The machine that a load runs on: its cores, and the CPU time and memory of processes.

pub mod awake_cores;
pub mod cgroup;
pub mod cores;
pub(crate) mod machine_meter;
pub mod memory;
pub mod resources;
