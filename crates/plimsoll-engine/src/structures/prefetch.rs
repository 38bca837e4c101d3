//! Prefetching of memory that is needed soon, while other work is done.
//!
//! With thousands of connections, none of them is cached when it is served, so that a call would wait for one cache
//! line after another.

#![expect(
    unsafe_code,
    reason = "prefetch instructions are intrinsics or assembly; they change nothing, and fault at no address"
)]

/// Maximum bytes of a value that are prefetched; the rest is not needed for every call.
const MAX_PREFETCH_BYTES: usize = 448;

/// Size of a cache line in bytes.
const CACHE_LINE_BYTES: usize = 64;

/// Prefetches the beginning of `value` without reading it.
#[inline(always)]
pub fn prefetch<T: ?Sized>(value: &T) {
    let start = std::ptr::from_ref(value).cast::<u8>();
    for at in (0..size_of_val(value).min(MAX_PREFETCH_BYTES)).step_by(CACHE_LINE_BYTES) {
        let line = start.wrapping_add(at);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the instruction is a hint and has no effect for an invalid address. Every x86-64 processor has it.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(line.cast());
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the instruction is a hint and has no effect for an invalid address.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{line}]", line = in(reg) line,
                options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = line;
    }
}
