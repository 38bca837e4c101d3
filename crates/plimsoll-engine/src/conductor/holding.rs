//! The memory of both ends while connections rest: read before there are any, when all are
//! up, and once an interval. The conductor calls this where the protocol asks for it.

use std::thread;
use std::time::Duration;

use plimsoll_model::run::{MemoryReading, Moment};

use crate::memory;
use crate::resources::Watched;

/// How long connections are left alone before their memory is read: the last of them is
/// still being opened at the other end.
const SETTLING_TIME: Duration = Duration::from_millis(500);

pub(super) struct Holding {
    client: Watched,
    server: Option<Watched>,
    /// Readings for the next interval's record.
    readings: Vec<MemoryReading>,
}

impl Holding {
    /// Reads what is held without any connection.
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

    /// Reads what the connections hold. While some go or come it says nothing.
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
