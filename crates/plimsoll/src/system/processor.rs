//! Restricts the CPU features that the cryptographic library uses.
//!
//! AVX-512 is fast for large TLS records, but slow for small ones: after a pause the AVX-512 units take about 20 µs to
//! power up, while encrypting a small record takes less than 1 µs. A relay with few calls per second would incur that
//! delay for every record. AWS-LC reads its CPU mask from an environment variable when it is loaded, so the process
//! re-executes itself with that variable set.

/// Environment variable with AWS-LC's CPU mask.
#[cfg(target_arch = "x86_64")]
const CPU_FLAGS_VARIABLE: &str = "OPENSSL_ia32cap";

/// Mask of CPUID leaf 7 bits to hide, after the colon: AVX-512 F, DQ, IFMA, CD, BW and VL.
#[cfg(target_arch = "x86_64")]
const AVX512_MASK: &str = ":~0xd0230000";

/// Re-executes the process with AVX-512 hidden from AWS-LC, unless the CPU has no AVX-512 or the user has set a mask.
/// Call this before opening any files or sockets.
#[cfg(target_arch = "x86_64")]
pub(crate) fn leave_wide_vectors() {
    use std::env;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    if !std::arch::is_x86_feature_detected!("avx512f") || env::var_os(CPU_FLAGS_VARIABLE).is_some()
    {
        return;
    }
    let mut arguments = env::args_os();
    let Ok(program) = env::current_exe() else {
        return;
    };
    let mut command = Command::new(program);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    // `exec` returns only if it fails; in that case continue with AVX-512.
    let problem = command
        .args(arguments)
        .env(CPU_FLAGS_VARIABLE, AVX512_MASK)
        .exec();
    tracing::debug!("restarting without AVX-512: {problem}");
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn leave_wide_vectors() {}
