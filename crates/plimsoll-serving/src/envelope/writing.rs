//! Writes an envelope (the server's record of its delays) on a separate thread while the server serves.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use aws_lc_rs::digest::{Context, SHA256};
use aws_lc_rs::rand;

use super::{
    CommitmentOpening, ENVELOPE_VERSION, EnvelopeCommitment, EnvelopeLine, ServedRequest,
    compute_commitment,
};
use plimsoll_wire::hex;

/// The maximum number of requests that wait to be written. At this number the server blocks, which is visible in its
/// timestamps.
const MAX_QUEUED_REQUESTS: usize = 1 << 16;
/// Length of the nonce, in bytes.
const NONCE_LEN: usize = 32;

/// The sender of finished requests to the writer thread.
#[derive(Clone, Debug)]
pub struct EnvelopeLog(SyncSender<ServedRequest>);

impl EnvelopeLog {
    /// Adds a finished request to the envelope.
    pub fn add(&self, request: ServedRequest) {
        // If the writer has failed, it reports the error at the end.
        let _ = self.0.send(request);
    }
}

/// The writer thread, which writes requests until every [`EnvelopeLog`] is dropped, and then opens the commitment.
#[derive(Debug)]
pub struct EnvelopeWriter {
    thread: JoinHandle<io::Result<()>>,
    /// The commitment, in hexadecimal digits.
    pub commitment: String,
}

impl EnvelopeWriter {
    /// Creates the file with the commitment, and starts the writer thread.
    ///
    /// # Errors
    /// When the file exists already, or can't be written.
    pub fn start(path: &Path, seed: u64, law: String) -> io::Result<(EnvelopeWriter, EnvelopeLog)> {
        let file = File::create_new(path)?;
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce)
            .map_err(|_| io::Error::other("the system's random number generator failed"))?;
        let nonce = hex::encode(&nonce);
        let commitment = compute_commitment(seed, &nonce, &law);
        let mut file = BufWriter::new(file);
        let sealed = EnvelopeLine::Sealed(EnvelopeCommitment {
            envelope: ENVELOPE_VERSION,
            commitment: commitment.clone(),
        });
        write_line(&mut file, &sealed)?;
        file.flush()?;
        let (log, requests) = sync_channel(MAX_QUEUED_REQUESTS);
        let opened = CommitmentOpening {
            seed,
            nonce,
            law,
            requests: 0,
            requests_sha256: String::new(),
        };
        let thread = std::thread::Builder::new()
            .name("envelope".to_owned())
            .spawn(move || write_requests(file, &requests, opened))?;
        Ok((EnvelopeWriter { thread, commitment }, EnvelopeLog(log)))
    }

    /// Waits until the whole file is written.
    ///
    /// # Errors
    /// When the file could not be written.
    pub fn finish(self) -> io::Result<()> {
        let ended = self.thread.join();
        ended.unwrap_or_else(|_| Err(io::Error::other("its thread panicked")))
    }
}

fn write_requests(
    mut file: BufWriter<File>,
    requests: &Receiver<ServedRequest>,
    mut opened: CommitmentOpening,
) -> io::Result<()> {
    let mut context = Context::new(&SHA256);
    for request in requests {
        let line = write_line(&mut file, &EnvelopeLine::Request(request))?;
        context.update(line.as_bytes());
        opened.requests += 1;
    }
    opened.requests_sha256 = hex::encode(context.finish().as_ref());
    write_line(&mut file, &EnvelopeLine::Opened(opened))?;
    file.flush()?;
    file.get_ref().sync_all()
}

/// Writes a line, and returns its text including the newline.
fn write_line(file: &mut impl Write, line: &EnvelopeLine) -> io::Result<String> {
    let mut text = serde_json::to_string(line)?;
    text.push('\n');
    file.write_all(text.as_bytes())?;
    Ok(text)
}
