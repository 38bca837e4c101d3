//! Reads the server's memory during a load of several processes. The processes read their own memory; the supervisor
//! reads the server's.
//!
//! Invariant: the server's memory that is reported for open, idle connections was read while all of these connections
//! were open. A reading is therefore used only if the processes later report that their connections were open at that
//! time.

use plimsoll_engine::host::memory;
use plimsoll_engine::host::resources::WatchedProcesses;
use plimsoll_model::runs::run::{MemoryPhase, MemoryReading, ProcessMemory};

/// The last memory readings of the watched server.
pub(super) struct ServerMemory {
    server: Option<WatchedProcesses>,
    before: Option<ProcessMemory>,
    held: Option<ProcessMemory>,
}

impl ServerMemory {
    /// Reads the server's memory before the first process starts.
    pub(super) fn start(server: Option<&WatchedProcesses>) -> ServerMemory {
        let mut memory = ServerMemory {
            server: server.cloned(),
            before: None,
            held: None,
        };
        memory.before = memory.read();
        memory
    }

    /// Reads the server's memory once every process has reported that its connections are open and idle.
    pub(super) fn read_while_idle(&mut self) {
        self.held = self.read();
    }

    /// Adds the server's memory to the processes' readings of an interval. Then reads the server's memory for the next
    /// interval in advance, because the connections may be closed before that interval ends.
    pub(super) fn add_to_readings(&mut self, readings: &mut [MemoryReading]) {
        if readings.is_empty() {
            return;
        }
        for reading in &mut *readings {
            reading.server = match reading.moment {
                MemoryPhase::Before => self.before,
                MemoryPhase::Held => self.held,
            };
        }
        self.read_while_idle();
    }

    fn read(&self) -> Option<ProcessMemory> {
        self.server.as_ref().and_then(memory::read_total_memory)
    }
}
