//! The size of this process's heap, used to report the memory of connections.

#![expect(
    unsafe_code,
    reason = "mallinfo2(3) takes nothing and returns a structure by value; no crate wraps it"
)]

/// Returns the bytes that all threads have allocated, as counted by the C library (`uordblks` and `hblkhd` of
/// mallinfo2(3)), including the allocator's overhead per block. Freed memory is excluded even if its pages
/// are kept.
///
/// Returns `None` if the C library is not glibc, or is older than 2.33.
pub(crate) fn allocated_bytes() -> Option<u64> {
    #[cfg(target_env = "gnu")]
    {
        // The function is looked up at run time, because release packages are linked against a glibc that does not have
        // it.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"mallinfo2".as_ptr()) };
        // SAFETY: the function type is that of mallinfo2(3), and a null pointer becomes `None`.
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
        // Other tests allocate at the same time, but less than these two blocks.
        let before = allocated_bytes().unwrap();
        let small: Vec<Vec<u8>> = (0..1 << 16).map(|_| vec![1; 1 << 10]).collect();
        let large = vec![1_u8; 128 << 20];
        let with = allocated_bytes().unwrap();
        assert!(with >= before + (160 << 20), "{before} {with}");
        drop((small, large));
        assert!(allocated_bytes().unwrap() <= with - (160 << 20));
    }
}
