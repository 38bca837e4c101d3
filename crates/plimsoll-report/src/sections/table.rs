//! A table for any medium: terminal, page and Markdown share it.

/// A table: a header, and rows with the same number of cells.
#[derive(Clone, Debug)]
pub(crate) struct TextTable {
    pub(crate) head: Vec<String>,
    /// Columns of text; the others contain figures.
    texts: Vec<usize>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl TextTable {
    /// Creates a table; the columns at `texts` contain text.
    pub(crate) fn new<S: Into<String>, R: Into<Vec<String>>>(
        head: impl IntoIterator<Item = S>,
        texts: &[usize],
        rows: impl IntoIterator<Item = R>,
    ) -> TextTable {
        TextTable {
            head: head.into_iter().map(Into::into).collect(),
            texts: texts.to_vec(),
            rows: rows.into_iter().map(Into::into).collect(),
        }
    }

    pub(crate) fn is_text(&self, column: usize) -> bool {
        self.texts.contains(&column)
    }

    /// Returns a table of the `chosen` columns, in this order.
    pub(crate) fn columns(&self, chosen: &[usize]) -> TextTable {
        let of = |cells: &Vec<String>| chosen.iter().map(|i| cells[*i].clone()).collect();
        TextTable {
            head: of(&self.head),
            texts: (0..chosen.len())
                .filter(|place| self.is_text(chosen[*place]))
                .collect(),
            rows: self.rows.iter().map(of).collect(),
        }
    }

    /// Transposes the table: rows become columns, each with the row's first cell as its heading.
    pub(crate) fn transpose(&self) -> TextTable {
        let cells = |i: usize| {
            let cells = self.rows.iter().map(move |row| row[i].clone());
            std::iter::once(self.head[i].clone()).chain(cells)
        };
        let rows = (1..self.head.len()).map(|i| cells(i).collect::<Vec<_>>());
        TextTable::new(cells(0), &[0], rows)
    }
}
