//! Number of bytes that a connection has carried, as counted by the kernel (`TCP_INFO`, tcp(7)): including TLS, framing
//! and handshakes, without TCP and IP headers.

#![expect(
    unsafe_code,
    reason = "neither std, socket2 nor rustix reads this option; it is one call of the C library"
)]

use std::os::fd::{AsFd, AsRawFd};

use super::ByteCounts;

/// Offsets of the counters in `struct tcp_info` (linux/tcp.h) since Linux 4.19. Newer kernels only append fields.
const BYTES_RECEIVED_OFFSET: usize = 128;
const BYTES_SENT_OFFSET: usize = 200;
const BYTES_RETRANSMITTED_OFFSET: usize = 208;
const TCP_INFO_BYTES: usize = 216;

/// Returns the byte counts of a socket; `None` if it is not TCP, or the kernel is older than 4.19.
pub(super) fn byte_counts(socket: &impl AsFd) -> Option<ByteCounts> {
    let mut info = [0_u8; TCP_INFO_BYTES];
    let mut length = TCP_INFO_BYTES as libc::socklen_t;
    // SAFETY: the descriptor is borrowed, and therefore open, for the whole call; the pointer is to an array on this
    // stack, and its size is passed as the length, beyond which the kernel writes nothing.
    let status = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if status != 0 || (length as usize) < TCP_INFO_BYTES {
        return None;
    }
    let at = |offset: usize| {
        let bytes = info[offset..].first_chunk()?;
        Some(u64::from_ne_bytes(*bytes))
    };
    Some(ByteCounts {
        sent: at(BYTES_SENT_OFFSET)?.saturating_sub(at(BYTES_RETRANSMITTED_OFFSET)?),
        received: at(BYTES_RECEIVED_OFFSET)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    #[test]
    fn byte_counts_are_per_direction() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        near.write_all(&[1; 700]).unwrap();
        far.read_exact(&mut [0; 700]).unwrap();
        far.write_all(&[2; 40_000]).unwrap();
        near.read_exact(&mut [0; 40_000]).unwrap();
        let carried = byte_counts(&near).unwrap();
        assert_eq!((carried.sent, carried.received), (700, 40_000));
    }

    #[test]
    fn non_tcp_socket_reports_no_bytes() {
        let (near, _far) = UnixStream::pair().unwrap();
        assert_eq!(byte_counts(&near), None);
    }
}
