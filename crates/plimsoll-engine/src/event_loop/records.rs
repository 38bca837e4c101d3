//! TLS records of a connection: opened, and handed on.

use crate::loss::Loss;
use crate::tls::TlsSession;

/// Takes what records hold.
pub(crate) trait Taker {
    fn is_handshaking(&self) -> bool;

    /// The handshake is over.
    fn handshaken(&mut self, session: &TlsSession) -> Result<(), Loss>;

    fn plaintext(&mut self, bytes: &[u8]) -> Result<(), Loss>;
}

/// Opens what came off the socket: where the records are our own where they lie, otherwise by the library.
/// `true`: the peer has closed its side.
#[inline]
pub(crate) fn open(
    session: &mut TlsSession,
    mut bytes: &mut [u8],
    taker: &mut impl Taker,
) -> Result<bool, Loss> {
    if taker.is_handshaking() && session.handshake(bytes)? {
        if session.is_handshaking() {
            return Ok(false);
        }
        taker.handshaken(session)?;
        // What came behind the handshake's end is with the session.
        bytes = &mut [];
    }
    match session.open(bytes, &mut |plain| taker.plaintext(plain))? {
        Some(closed) => Ok(closed),
        None => open_by_library(session, bytes, taker),
    }
}

fn open_by_library(
    session: &mut TlsSession,
    mut bytes: &[u8],
    taker: &mut impl Taker,
) -> Result<bool, Loss> {
    while !bytes.is_empty() {
        let read = session.read(&mut bytes);
        if taker.is_handshaking() && !session.is_handshaking() && read.is_ok() {
            taker.handshaken(session)?;
        }
        while let Some(plain) = session.plaintext() {
            let length = plain.len();
            taker.plaintext(plain)?;
            session.consume(length);
        }
        if read? {
            return Ok(true);
        }
    }
    Ok(false)
}
