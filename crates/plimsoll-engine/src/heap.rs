//! What this process has on its heap.

#![expect(
    unsafe_code,
    reason = "mallinfo2(3) takes nothing and returns a structure by value; no crate wraps it"
)]

/// Bytes that are allocated, by all threads, as the C library counts them (`uordblks` and
/// `hblkhd` of mallinfo2(3)): exact, where pages in memory are kept after they were freed. What the
/// allocator needs for itself beside a block is in it.
///
/// `None`: another C library than glibc, or one older than 2.33.
pub(crate) fn allocated() -> Option<u64> {
    #[cfg(target_env = "gnu")]
    {
        // Looked up, since packages are linked for a glibc that has no such function.
        // SAFETY: the name ends with a zero byte.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"mallinfo2".as_ptr()) };
        // SAFETY: that is the function's type, and null is `None`.
        let count = unsafe {
            std::mem::transmute::<*mut libc::c_void, Option<extern "C" fn() -> libc::mallinfo2>>(
                found,
            )
        };
        let info = count?();
        Some((info.uordblks + info.hblkhd) as u64)
    }
    #[cfg(not(target_env = "gnu"))]
    None
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    #[test]
    fn heap_usage_excludes_freed_memory() {
        // Other tests allocate beside this one, less than its two blocks.
        let before = allocated().unwrap();
        let small: Vec<Vec<u8>> = (0..1 << 16).map(|_| vec![1; 1 << 10]).collect();
        let large = vec![1_u8; 128 << 20];
        let with = allocated().unwrap();
        assert!(with >= before + (160 << 20), "{before} {with}");
        drop((small, large));
        assert!(allocated().unwrap() <= with - (160 << 20));
    }
}
