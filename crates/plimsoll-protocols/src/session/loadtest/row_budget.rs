//! A reader for CSV rows that buffers at most one row, however large the file is.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

/// The maximum length of a row in bytes. A row may span several lines in quotes; a typical row has about 100 bytes.
pub(super) const MAX_ROW_BYTES: usize = 1 << 20;

/// Maximum number of bytes that the CSV reader's buffer reads beyond a row's end.
const READ_AHEAD_BYTES: usize = 64 << 10;

/// The number of bytes that may still be read for the current row.
#[derive(Clone, Debug)]
pub(super) struct RowBudget(Rc<Cell<usize>>);

impl RowBudget {
    pub(super) fn new() -> RowBudget {
        RowBudget(Rc::new(Cell::new(MAX_ROW_BYTES + READ_AHEAD_BYTES)))
    }

    /// Resets the budget for the next row.
    pub(super) fn reset(&self) {
        self.0.set(MAX_ROW_BYTES + READ_AHEAD_BYTES);
    }

    /// Wraps `from`; reading fails when a row exceeds the budget.
    pub(super) fn limit_reader<R: Read>(&self, from: R) -> impl Read + use<R> {
        BoundedReader(from, self.clone())
    }
}

struct BoundedReader<R>(R, RowBudget);

impl<R: Read> Read for BoundedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let BoundedReader(from, RowBudget(left)) = self;
        let read = from.read(buffer)?;
        let rest = left.get().checked_sub(read);
        left.set(rest.ok_or_else(|| {
            io::Error::other(format!(
                "a row of more than {MAX_ROW_BYTES} bytes: is a closing quote missing?"
            ))
        })?);
        Ok(read)
    }
}
