//! What the cryptography may use of the processor.
//!
//! AVX-512 seals large records fast, and small ones slowly: after a pause its units take
//! about 20 µs to wake up, while the record itself takes less than one. A relay with few
//! calls a second pays that for every record. The library chooses when the process is
//! loaded, by a variable of the environment, so the process starts itself anew with it.

/// Read by AWS-LC.
#[cfg(target_arch = "x86_64")]
const CPU_FLAGS_VARIABLE: &str = "OPENSSL_ia32cap";

/// Behind the colon: bits of CPUID leaf 7 that are not to be seen. AVX-512 F, DQ, IFMA,
/// CD, BW and VL.
#[cfg(target_arch = "x86_64")]
const WITHOUT_AVX512: &str = ":~0xd0230000";

/// Starts the process anew, once, where its processor has AVX-512 and nobody has said
/// what of it to use. To be called before anything is opened.
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
    // It only comes back where it has failed, and then all goes on as it was.
    let problem = command
        .args(arguments)
        .env(CPU_FLAGS_VARIABLE, WITHOUT_AVX512)
        .exec();
    tracing::debug!("starting anew without AVX-512: {problem}");
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn leave_wide_vectors() {}
