//! Samples the server's memory for a load of several processes. The processes read their own memory; the supervisor,
//! which watches the server, reads the server's.
//!
//! Invariant: a reading reported for a moment at which connections were held was taken while all of them were open. A
//! reading is kept until later readings of the processes confirm that.

use plimsoll_engine::memory;
use plimsoll_engine::resources::WatchedProcesses;
use plimsoll_model::run::{MemoryPhase, MemoryReading, ProcessMemory};

/// The last memory readings of the watched server.
pub(super) struct ServerMemory {
    server: Option<WatchedProcesses>,
    before: Option<ProcessMemory>,
    held: Option<ProcessMemory>,
}

impl ServerMemory {
    /// Reads the server's memory before the first process starts.
    pub(super) fn before(server: Option<&WatchedProcesses>) -> ServerMemory {
        let mut memory = ServerMemory {
            server: server.cloned(),
            before: None,
            held: None,
        };
        memory.before = memory.read();
        memory
    }

    /// Reads the server's memory once every process has reported that its connections are open and idle.
    pub(super) fn held(&mut self) {
        self.held = self.read();
    }

    /// Adds the server's readings to those of the processes at an interval's end, and reads again for the next
    /// interval, because the connections may close before it ends.
    pub(super) fn add(&mut self, readings: &mut [MemoryReading]) {
        if readings.is_empty() {
            return;
        }
        for reading in &mut *readings {
            reading.server = match reading.moment {
                MemoryPhase::Before => self.before,
                MemoryPhase::Held => self.held,
            };
        }
        self.held();
    }

    fn read(&self) -> Option<ProcessMemory> {
        self.server.as_ref().and_then(memory::of_processes)
    }
}
