//! Tests of a connection's memory: the driver's own size and everything it has on the heap.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use plimsoll_protocols::grpc::canned::{CannedOptions, CannedServer};

use super::*;

/// An allocator that counts the bytes that this thread holds, and its allocations.
struct CountingAllocator;

thread_local! {
    static HELD_BYTES: Cell<isize> = const { Cell::new(0) };
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

#[expect(
    unsafe_code,
    reason = "the allocator's interface is unsafe; it only counts and passes on"
)]
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = HELD_BYTES.try_with(|held| held.set(held.get() + layout.size() as isize));
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the arguments are passed on unchanged, so the guarantees of the caller hold.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        let _ = HELD_BYTES.try_with(|held| held.set(held.get() - layout.size() as isize));
        // SAFETY: the arguments are passed on unchanged, so the guarantees of the caller hold.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn busy_connection_memory_stays_small() {
    let protocol = protocol(128);
    let canned = CannedServer::new(CannedOptions {
        answered_by_caller: true,
        ..CannedOptions::default()
    });
    let mut server = canned.new_connection();
    let (mut out, mut to_client) = (Vec::with_capacity(4096), Vec::with_capacity(4096));
    let (mut events, mut held) = (Vec::with_capacity(64), Vec::with_capacity(64));
    server.send_preface(&mut to_client);

    let before = HELD_BYTES.get();
    let mut driver = protocol.new_driver();
    driver.open(Time(0), &mut out);
    let mut server_bytes = 0;
    for number in 0..20 {
        driver
            .receive(&to_client, Time(1), &mut out, &mut events)
            .unwrap();
        driver.start(CallId(0), number, Time(1), &mut out);
        to_client.clear();
        let server_before = HELD_BYTES.get();
        server.receive(&out, &mut to_client, &mut held).unwrap();
        for stream in held.drain(..) {
            server.answer_held_request(stream, &mut to_client);
        }
        server_bytes += HELD_BYTES.get() - server_before;
        out.clear();
    }
    let heap = HELD_BYTES.get() - before - server_bytes;
    let total = heap as usize + size_of_val(&driver);
    println!(
        "driver {} bytes, heap {heap} bytes, total {total}",
        size_of_val(&driver)
    );
    assert_eq!(
        heap as usize,
        driver.heap_bytes(),
        "the driver knows what it holds"
    );
    assert!(total < 1_200, "{total} bytes a connection");
    assert!(
        events
            .iter()
            .all(|event| matches!(event, Event::Done(done) if done.outcome.is_ok()))
    );
}

#[test]
fn steady_state_allocates_nothing() {
    let protocol = protocol(128);
    let mut server = CannedServer::new(CannedOptions::default()).new_connection();
    let mut driver = protocol.new_driver();
    let (mut out, mut to_client) = (Vec::new(), Vec::new());
    let (mut events, mut held) = (Vec::new(), Vec::new());
    driver.open(Time(0), &mut out);
    server.send_preface(&mut to_client);
    let mut client_allocations = 0;
    for round in 0..200u64 {
        let before = ALLOCATIONS.get();
        // Two pieces, so that there is a partial frame each time.
        let (first, second) = to_client.split_at(to_client.len() * 2 / 3);
        driver
            .receive(first, Time(1), &mut out, &mut events)
            .unwrap();
        driver
            .receive(second, Time(1), &mut out, &mut events)
            .unwrap();
        for call in 0..50 {
            driver.start(CallId(call), round, Time(1), &mut out);
        }
        if round >= 100 {
            client_allocations += ALLOCATIONS.get() - before;
        }
        events.clear();
        to_client.clear();
        server.receive(&out, &mut to_client, &mut held).unwrap();
        out.clear();
    }
    assert_eq!(client_allocations, 0);
}
