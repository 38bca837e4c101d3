//! Arbitrary bytes as the PROXY header of a connection: no panic, no header over the limit, and the same result for
//! every split. Headers that another implementation has written must be parsed to the client that they were written
//! for.
#![no_main]

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use libfuzzer_sys::fuzz_target;
use plimsoll_wire::proxy_protocol::{self, MAX_HEADER_BYTES, ProxyError, ProxyHeader};
use ppp::v1;
use ppp::v2::{Builder, Command, IPv4, IPv6, Protocol, Type, Version};

/// The result, with the number of bytes after which it is known; `None` if more bytes are needed.
fn verdict(bytes: &[u8]) -> Option<(usize, Result<ProxyHeader, ProxyError>)> {
    let of_first = |length| proxy_protocol::parse(&bytes[..length]).transpose();
    let (read, first) =
        (0..=bytes.len()).find_map(|length| of_first(length).map(|verdict| (length, verdict)))?;
    for length in read..=bytes.len() {
        assert_eq!(of_first(length).as_ref(), Some(&first));
    }
    assert!(read <= MAX_HEADER_BYTES);
    Some((read, first))
}

/// Checks `wire`, a header of `client` followed by arbitrary bytes.
fn assert_client(client: Option<SocketAddr>, wire: &[u8], followed_by: &[u8]) {
    let size = wire.len();
    let expected = if size <= MAX_HEADER_BYTES {
        Ok(ProxyHeader { client, size })
    } else {
        Err(ProxyError::TooLong(MAX_HEADER_BYTES))
    };
    let (read, verdict) = verdict(&[wire, followed_by].concat()).expect("a verdict");
    assert!(read <= size);
    assert_eq!(verdict, expected);
}

fuzz_target!(|input: &[u8]| {
    match verdict(input) {
        None => assert!(input.len() < MAX_HEADER_BYTES),
        Some((read, Ok(header))) => {
            assert_eq!(read, header.size);
            assert!(proxy_protocol::has_signature(input));
        }
        Some((_, Err(ProxyError::Missing))) => assert!(!proxy_protocol::has_signature(input)),
        Some(_) => {}
    }

    let Some((address, rest)) = input.split_first_chunk::<16>() else {
        return;
    };
    let Some((ports, rest)) = rest.split_first_chunk::<4>() else {
        return;
    };
    let six = Ipv6Addr::from(*address);
    let four = Ipv4Addr::from([address[0], address[1], address[2], address[3]]);
    let port = u16::from_be_bytes([ports[0], ports[1]]);
    let other = u16::from_be_bytes([ports[2], ports[3]]);
    let (from_four, from_six) = (Some((four, port).into()), Some((six, port).into()));

    let text = v1::Addresses::new_tcp4(four, Ipv4Addr::LOCALHOST, port, other).to_string();
    assert_client(from_four, text.as_bytes(), rest);
    let text = v1::Addresses::new_tcp6(six, Ipv6Addr::LOCALHOST, port, other).to_string();
    assert_client(from_six, text.as_bytes(), rest);

    let build = |command: Command, addresses: ppp::v2::Addresses| {
        let builder = Builder::with_addresses(Version::Two | command, Protocol::Stream, addresses);
        let extended = builder.write_tlv(Type::NoOp, rest).expect("a short value");
        extended.build().expect("a short header")
    };
    let addresses = IPv4::new(four, Ipv4Addr::LOCALHOST, port, other);
    assert_client(from_four, &build(Command::Proxy, addresses.into()), rest);
    let addresses = IPv6::new(six, Ipv6Addr::LOCALHOST, port, other);
    assert_client(from_six, &build(Command::Proxy, addresses.into()), rest);
    // The header of a connection that the proxy makes for itself: its addresses are ignored.
    assert_client(None, &build(Command::Local, addresses.into()), rest);
});
