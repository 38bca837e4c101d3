//! `SO_RCVLOWAT` (socket(7)): makes a socket readable only when a number of bytes has arrived.
//!
//! In bulk transfers, wake-ups cost more than encryption: a worker that is woken for every segment spends most of its
//! CPU time on wake-ups. Callers must know that the bytes will arrive, such as the rest of a body of known length. End
//! of stream always wakes the worker.

#![expect(
    unsafe_code,
    reason = "neither std, socket2 nor rustix sets this option; it is one call of the C library"
)]

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Sets the low-water mark: the socket becomes readable at `bytes` bytes (1: any).
///
/// # Errors
/// Returns the errors of setsockopt(2).
pub(super) fn set_low_water_mark(socket: &impl AsFd, bytes: usize) -> io::Result<()> {
    let value = c_int::try_from(bytes).unwrap_or(c_int::MAX).max(1);
    // SAFETY: the descriptor is borrowed, and therefore open, for the whole call; the pointer is to a `c_int` on this
    // stack, and `c_int`'s size is passed as the length. The kernel only reads it.
    let status = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const value).cast(),
            size_of::<c_int>() as libc::socklen_t,
        )
    };
    match status {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    #[test]
    fn read_waits_for_low_water_or_eof() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        set_low_water_mark(&near, 1000).unwrap();
        let writer = std::thread::spawn(move || {
            far.write_all(&[1; 400]).unwrap();
            std::thread::sleep(Duration::from_millis(50));
            far.write_all(&[2; 600]).unwrap();
            far.write_all(&[3; 10]).unwrap();
        });
        let mut buffer = [0; 4096];
        // A blocking read respects the mark as epoll does.
        let got = near.read(&mut buffer).unwrap();
        assert!(got >= 1000, "{got}");
        set_low_water_mark(&near, 1000).unwrap();
        // Fewer bytes than the mark, followed by end of stream.
        let rest: usize = std::iter::from_fn(|| match near.read(&mut buffer).unwrap() {
            0 => None,
            n => Some(n),
        })
        .sum();
        assert_eq!(got + rest, 1010);
        writer.join().unwrap();
    }
}
