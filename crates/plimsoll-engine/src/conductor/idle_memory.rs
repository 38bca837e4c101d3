//! The memory of client and server while connections are idle: read before any connection is made, when all
//! are established, and once per interval. The conductor uses this for protocols whose connections are mostly
//! idle.

use std::thread;
use std::time::Duration;

use plimsoll_model::runs::run::{MemoryPhase, MemoryReading};

use crate::host::memory;
use crate::host::resources::WatchedProcesses;

/// Delay before the memory of idle connections is read, because the server may still be setting up the last ones.
const SETTLING_TIME: Duration = Duration::from_millis(500);

pub(super) struct IdleMemorySampler {
    client: WatchedProcesses,
    server: Option<WatchedProcesses>,
    /// Readings for the next interval's record.
    readings: Vec<MemoryReading>,
}

impl IdleMemorySampler {
    /// Creates a sampler and takes the first reading, before any connection is made.
    pub(super) fn new(
        client: &WatchedProcesses,
        server: Option<&WatchedProcesses>,
    ) -> IdleMemorySampler {
        let mut sampler = IdleMemorySampler {
            client: client.clone(),
            server: server.cloned(),
            readings: Vec::new(),
        };
        let before = sampler.read_memory(MemoryPhase::Before, 0);
        sampler.readings.push(before);
        sampler
    }

    pub(super) fn wait_until_settled(&self) {
        thread::sleep(SETTLING_TIME);
    }

    /// Reads the memory with open connections. Discards the reading if the number of connections has changed in the
    /// meantime.
    pub(super) fn read(&mut self, open: impl Fn() -> u64) {
        let connections = open();
        let reading = self.read_memory(MemoryPhase::Held, connections);
        if connections > 0 && open() == connections {
            self.readings.push(reading);
        }
    }

    pub(super) fn take_readings(&mut self) -> Vec<MemoryReading> {
        std::mem::take(&mut self.readings)
    }

    fn read_memory(&self, moment: MemoryPhase, connections: u64) -> MemoryReading {
        MemoryReading {
            moment,
            connections,
            client: memory::read_total_memory(&self.client),
            server: self.server.as_ref().and_then(memory::read_total_memory),
            kernel: memory::read_kernel_memory(),
        }
    }
}
