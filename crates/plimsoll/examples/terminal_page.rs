//! What a program showed on the whole terminal, as an HTML page: for pictures in documents.
//!
//!     script -qec 'stty rows 36 cols 110; plimsoll run plan.toml' session >/dev/null
//!     cargo run -p plimsoll --example terminal_page -- 36 110 <session >page.html
//!
//! Takes the last frame before the program gave the terminal back.

use std::fmt::Write as _;
use std::io::{self, Read, Write as _};

use vt100::{Cell, Color, Parser};

/// How xterm leaves the other screen.
const GIVEN_BACK: &[u8] = b"\x1b[?1049l";

const STYLE: &str = "body{margin:0;background:#10161d}pre{margin:0;padding:18px 22px;color:#dde6ee;\
font:15px/1.28 'DejaVu Sans Mono',ui-monospace,monospace}";

fn main() -> io::Result<()> {
    let size: Vec<u16> = std::env::args()
        .skip(1)
        .filter_map(|n| n.parse().ok())
        .collect();
    let [rows, columns] = size[..] else {
        return Err(io::Error::other(
            "usage: terminal_page ROWS COLUMNS <session >page.html",
        ));
    };
    let mut session = Vec::new();
    io::stdin().read_to_end(&mut session)?;
    let end = session
        .windows(GIVEN_BACK.len())
        .rposition(|window| window == GIVEN_BACK)
        .ok_or_else(|| io::Error::other("nothing took the whole terminal in this session"))?;
    let mut parser = Parser::new(rows, columns, 0);
    parser.process(&session[..end]);
    let screen = parser.screen();
    let mut page = format!("<!DOCTYPE html><meta charset=utf-8><style>{STYLE}</style><pre>");
    for row in 0..rows {
        for column in 0..columns {
            if let Some(cell) = screen.cell(row, column) {
                write_cell(&mut page, cell);
            }
        }
        page.push('\n');
    }
    page.push_str("</pre>\n");
    io::stdout().write_all(page.as_bytes())
}

fn write_cell(page: &mut String, cell: &Cell) {
    let colour = match cell.fgcolor() {
        Color::Idx(1 | 9) => "#ff7d98",
        Color::Idx(3 | 11) => "#ffc65c",
        Color::Idx(6 | 14) => "#4fc3f7",
        _ if cell.dim() => "#7d8c9a",
        _ => "inherit",
    };
    let weight = if cell.bold() { 700 } else { 400 };
    let text = match cell.contents() {
        "" => " ",
        text => text,
    };
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let _ = write!(
        page,
        "<span style=\"color:{colour};font-weight:{weight}\">{text}</span>"
    );
}
