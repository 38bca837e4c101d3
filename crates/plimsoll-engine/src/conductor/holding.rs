//! The memory of client and server while connections are idle: read before any connection is made, when all
//! are established, and once per interval. The conductor uses this for protocols whose connections are mostly
//! idle.

use std::thread;
use std::time::Duration;

use plimsoll_model::run::{MemoryReading, Moment};

use crate::memory;
use crate::resources::Watched;

/// Delay before the memory of idle connections is read: the server may still be setting up the last of them.
const SETTLING_TIME: Duration = Duration::from_millis(500);

pub(super) struct Holding {
    client: Watched,
    server: Option<Watched>,
    /// Readings for the next interval's record.
    readings: Vec<MemoryReading>,
}

impl Holding {
    /// Makes a sampler and reads the memory without any connection.
    pub(super) fn before(client: &Watched, server: Option<&Watched>) -> Holding {
        let mut holding = Holding {
            client: client.clone(),
            server: server.cloned(),
            readings: Vec::new(),
        };
        let before = holding.reading(Moment::Before, 0);
        holding.readings.push(before);
        holding
    }

    pub(super) fn settle(&self) {
        thread::sleep(SETTLING_TIME);
    }

    /// Reads the memory with open connections. The reading is dropped if their number changed meanwhile.
    pub(super) fn read(&mut self, open: impl Fn() -> u64) {
        let connections = open();
        let reading = self.reading(Moment::Held, connections);
        if connections > 0 && open() == connections {
            self.readings.push(reading);
        }
    }

    pub(super) fn take(&mut self) -> Vec<MemoryReading> {
        std::mem::take(&mut self.readings)
    }

    fn reading(&self, moment: Moment, connections: u64) -> MemoryReading {
        MemoryReading {
            moment,
            connections,
            client: memory::of_processes(&self.client),
            server: self.server.as_ref().and_then(memory::of_processes),
            kernel: memory::of_kernel(),
        }
    }
}
