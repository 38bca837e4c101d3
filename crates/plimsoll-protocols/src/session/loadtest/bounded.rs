//! A reader of rows that holds no more than one of them, however large the file is.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

/// Bytes of a row, however many lines its quotes span; a query takes 100.
pub(super) const MAX_ROW: usize = 1 << 20;

/// What may be read ahead of a row's end: the buffer of the CSV reader.
const READ_AHEAD: usize = 64 << 10;

/// What is left of the row that is being read.
#[derive(Clone, Debug)]
pub(super) struct RowBudget(Rc<Cell<usize>>);

impl RowBudget {
    pub(super) fn new() -> RowBudget {
        RowBudget(Rc::new(Cell::new(MAX_ROW + READ_AHEAD)))
    }

    /// A row has ended, and the next one may be as long.
    pub(super) fn renew(&self) {
        self.0.set(MAX_ROW + READ_AHEAD);
    }

    /// `from`, which fails when a row takes more.
    pub(super) fn bound<R: Read>(&self, from: R) -> impl Read + use<R> {
        Bounded(from, self.clone())
    }
}

struct Bounded<R>(R, RowBudget);

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Bounded(from, RowBudget(left)) = self;
        let read = from.read(buffer)?;
        let rest = left.get().checked_sub(read);
        left.set(rest.ok_or_else(|| {
            io::Error::other(format!(
                "a row of more than {MAX_ROW} bytes: is a quote left open?"
            ))
        })?);
        Ok(read)
    }
}
