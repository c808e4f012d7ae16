//! Generates the services' code from the protos, without an installed compiler.

#[cfg(not(feature = "cluster"))]
fn main() {}

#[cfg(feature = "cluster")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = ["polycast/agent/v1/agent.proto", "polycast/manager/v1/manager.proto"];
    let descriptors = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
