//! Generates the services' code from the protos, without an installed compiler.

#[cfg(not(feature = "cluster"))]
fn main() {}

#[cfg(feature = "cluster")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let agent = "polycast/agent/v1/agent.proto";
    let protos = [agent, "polycast/manager/v1/manager.proto", "polycast/scheduler/v1/scheduler.proto"];
    let descriptors = protox::compile(protos, ["proto"])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    let told = std::path::Path::new(&std::env::var("OUT_DIR")?).join("agent.bin");
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).include_source_info(true).open_file(agent)?;
    Ok(std::fs::write(told, compiler.encode_file_descriptor_set())?)
}
