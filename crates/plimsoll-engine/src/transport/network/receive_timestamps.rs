//! The kernel's receive timestamps (`SO_TIMESTAMPNS`, socket(7)): when bytes reached this host.
//!
//! A worker that was busy or preempted reads bytes late and cannot tell by how much. The kernel timestamps each segment
//! on arrival and returns the timestamp of the last segment together with the bytes.

use std::io::{self, IoSliceMut};
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use nix::sys::socket::sockopt::ReceiveTimestampns;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt};
use plimsoll_model::Time;
use rustix::time::{ClockId, clock_gettime};

use super::ReceiveTime;
use crate::clock::Clock;

/// A reader that obtains bytes together with their receive timestamps.
pub(super) struct ReceiveTimestamps {
    /// The time at which the last bytes of the last read reached this host; `None` if the kernel provided no timestamp.
    pub(super) last_receive_time: Option<ReceiveTime>,
    /// Buffer for the control message with the timestamp.
    control: Vec<u8>,
}

/// Enables timestamps for a socket. If that fails, its bytes have no timestamps.
pub(super) fn enable(socket: &TcpStream) {
    let _ = setsockopt(socket, ReceiveTimestampns, &true);
}

impl ReceiveTimestamps {
    pub(super) fn new() -> ReceiveTimestamps {
        ReceiveTimestamps {
            last_receive_time: None,
            control: nix::cmsg_space!(libc::timespec),
        }
    }

    /// Reads available bytes into `buffer`; 0 bytes mean end of stream.
    ///
    /// # Errors
    /// Returns the errors of recvmsg(2).
    pub(super) fn read(
        &mut self,
        socket: &TcpStream,
        buffer: &mut [u8],
        clock: Clock,
    ) -> io::Result<usize> {
        self.last_receive_time = None;
        let mut into = [IoSliceMut::new(buffer)];
        let message = recvmsg::<()>(
            socket.as_raw_fd(),
            &mut into,
            Some(&mut self.control),
            MsgFlags::empty(),
        )?;
        let stamp = message.cmsgs()?.find_map(|message| match message {
            ControlMessageOwned::ScmTimestampns(stamp) => Some(stamp),
            _ => None,
        });
        // Timestamps are wall-clock times, which may be adjusted, so only their age is used. If the thread is preempted
        // between the two clock readings, `now` is too early for that age, but it is never too late.
        let now = clock.now();
        let wall = clock_gettime(ClockId::Realtime);
        self.last_receive_time = stamp.and_then(|stamp| {
            let ago_ns =
                (wall.tv_sec - stamp.tv_sec()) * 1_000_000_000 + (wall.tv_nsec - stamp.tv_nsec());
            let ago_ns = u64::try_from(ago_ns).ok()?;
            Some(ReceiveTime {
                earliest: Time(now.0.checked_sub(ago_ns)?),
                age_ns: ago_ns,
            })
        });
        Ok(message.bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;
    use std::time::Duration;

    use super::*;

    #[test]
    fn late_read_reports_kernel_arrival_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        enable(&near);
        let (clock, mut stamps) = (Clock::new(), ReceiveTimestamps::new());
        let mut buffer = [0; 64];
        // Timestamps begin a moment after they were enabled, and a busy machine delivers late.
        let given_up = clock.now() + Duration::from_secs(60);
        loop {
            let before = clock.now();
            far.write_all(b"answer").unwrap();
            let after = clock.now();
            std::thread::sleep(Duration::from_millis(5));
            assert_eq!(stamps.read(&near, &mut buffer, clock).unwrap(), 6);
            if let Some(arrived) = stamps.last_receive_time {
                assert!(Time(clock.now().0 - arrived.age_ns) >= before);
                if (before..=after).contains(&arrived.earliest) {
                    break;
                }
            }
            assert!(clock.now() < given_up, "{:?}", stamps.last_receive_time);
        }
        near.set_nonblocking(true).unwrap();
        let nothing = stamps.read(&near, &mut buffer, clock).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(stamps.last_receive_time, None);
        drop(far);
        near.set_nonblocking(false).unwrap();
        assert_eq!(stamps.read(&near, &mut buffer, clock).unwrap(), 0);
    }
}
