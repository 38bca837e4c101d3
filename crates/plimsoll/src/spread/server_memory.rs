//! The server's memory while the connections of several processes rest. They read their own;
//! this one, which watches the server, reads its.
//!
//! Invariant: what is reported of a moment at which connections were held was read while all of
//! them were up. A reading is kept until readings of the processes that came later say so.

use plimsoll_engine::memory;
use plimsoll_engine::resources::Watched;
use plimsoll_model::run::{MemoryReading, Moment, ProcessMemory};

pub(super) struct ServerMemory {
    server: Option<Watched>,
    before: Option<ProcessMemory>,
    held: Option<ProcessMemory>,
}

impl ServerMemory {
    /// Reads what the server holds before the first process is started.
    pub(super) fn before(server: Option<&Watched>) -> ServerMemory {
        let mut memory = ServerMemory {
            server: server.cloned(),
            before: None,
            held: None,
        };
        memory.before = memory.read();
        memory
    }

    /// Reads it with all connections, when every process has reported that its own are at rest.
    pub(super) fn held(&mut self) {
        self.held = self.read();
    }

    /// Adds what was read to what the processes read of themselves up to an interval's end, and
    /// reads again for the next. The end of the last interval may be that of the connections.
    pub(super) fn add(&mut self, readings: &mut [MemoryReading]) {
        if readings.is_empty() {
            return;
        }
        for reading in &mut *readings {
            reading.server = match reading.moment {
                Moment::Before => self.before,
                Moment::Held => self.held,
            };
        }
        self.held();
    }

    fn read(&self) -> Option<ProcessMemory> {
        self.server.as_ref().and_then(memory::of_processes)
    }
}
