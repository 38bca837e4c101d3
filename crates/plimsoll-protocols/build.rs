//! Compiles the protos of the reference servers; needs no protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    #[cfg(feature = "targets")]
    {
        use protox::prost::Message as _;

        let descriptors =
            protox::compile(["score.proto", "orders.proto", "echo.proto"], ["proto"])?;
        let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
        std::fs::write(out.join("services.binpb"), descriptors.encode_to_vec())?;
        tonic_prost_build::compile_fds(descriptors)?;
    }
    Ok(())
}
