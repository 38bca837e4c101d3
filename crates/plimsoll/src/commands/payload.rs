//! `plimsoll payload`: makes a file of an exact size.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use plimsoll_model::formats::output;
use plimsoll_model::formats::units::ByteSize;

use crate::failure::{Exit, Failure};
use crate::screen::console;

const BLOCK_BYTES: usize = 64 * 1024;

/// Make a file of an exact size, to serve and fetch.
#[derive(Debug, Args)]
#[command(before_help = "Example: a file of 102,400 bytes\n  \
    plimsoll payload 100KiB files/100KiB.bin")]
pub(crate) struct PayloadArguments {
    /// The size, such as "1KiB", "512MiB" or "1000B".
    #[arg(value_name = "SIZE")]
    size: ByteSize,

    /// The file to write; - is stdout.
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Overwrite an existing file.
    #[arg(long)]
    force: bool,
}

pub(crate) fn execute(arguments: &PayloadArguments) -> Result<Exit, Failure> {
    if arguments.file == Path::new("-") {
        let written = write_incompressible_bytes(&mut io::stdout().lock(), arguments.size.0);
        return match written {
            // A closed pipe (`| head`) is not an error.
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
                Err(Failure::error(format_args!("can't write to stdout: {e}")))
            }
            _ => Ok(Exit::Done),
        };
    }
    let shown = arguments.file.display();
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    if !arguments.force {
        options.create_new(true);
    }
    let mut file = options.open(&arguments.file).map_err(|e| {
        let help = match e.kind() {
            io::ErrorKind::AlreadyExists => "give another name, or --force to overwrite it",
            io::ErrorKind::NotFound => "make its folder first",
            _ => "give a name in a folder that this user may write to",
        };
        Failure::error_with_help(format_args!("can't make {shown}: {e}"), help)
    })?;
    let written =
        write_incompressible_bytes(&mut file, arguments.size.0).and_then(|()| output::sync(&file));
    if let Err(e) = written {
        // Don't leave a file of the wrong size.
        let _ = std::fs::remove_file(&arguments.file);
        return Err(Failure::error(format_args!("can't write {shown}: {e}")));
    }
    console::print_result(format_args!("{shown}: {} bytes\n", arguments.size.0))?;
    Ok(Exit::Done)
}

/// Writes `size` incompressible bytes.
fn write_incompressible_bytes(out: &mut impl Write, size: u64) -> io::Result<()> {
    let mut mixer = XorshiftBytes(0x9e37_79b9_7f4a_7c15);
    let mut block = vec![0u8; BLOCK_BYTES];
    let mut left = size;
    while left > 0 {
        mixer.fill(&mut block);
        let n = usize::try_from(left)
            .unwrap_or(BLOCK_BYTES)
            .min(BLOCK_BYTES);
        out.write_all(&block[..n])?;
        left -= n as u64;
    }
    out.flush()
}

/// Generator of incompressible bytes (xorshift64), always the same sequence.
struct XorshiftBytes(u64);

impl XorshiftBytes {
    fn fill(&mut self, block: &mut [u8]) {
        for word in block.chunks_exact_mut(8) {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            word.copy_from_slice(&self.0.to_le_bytes());
        }
    }
}
