//! Compiles the protos of the reference servers; needs no protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    #[cfg(feature = "targets")]
    {
        let descriptors =
            protox::compile(["score.proto", "orders.proto", "echo.proto"], ["proto"])?;
        tonic_prost_build::compile_fds(descriptors)?;
    }
    Ok(())
}
