//! Generates the gRPC code from `proto/` without a system `protoc`, and the descriptor set that reflection serves.

use std::{env, error::Error, fs, path::PathBuf};

const PROTO_ROOT: &str = "proto";
const FILES: [&str; 3] = ["orbit/v1/queue.proto", "orbit/v1/task.proto", "orbit/v1/worker.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={PROTO_ROOT}");
    let out = PathBuf::from(env::var("OUT_DIR")?);

    let mut compiler = protox::Compiler::new([PROTO_ROOT])?;
    compiler.include_imports(true).include_source_info(true).open_files(FILES)?;
    // Encoded by protox itself: a detour over prost-types would drop custom options.
    fs::write(out.join("orbit_descriptor.bin"), compiler.encode_file_descriptor_set())?;

    let server = env::var_os("CARGO_FEATURE_SERVER").is_some();
    let mut prost = prost_build::Config::new();
    prost.extern_path(".google.rpc.Status", "::tonic_types::Status");
    tonic_prost_build::configure()
        .build_client(true)
        .build_server(server)
        .compile_fds_with_config(compiler.file_descriptor_set(), prost)?;
    Ok(())
}
