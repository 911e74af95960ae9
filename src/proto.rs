//! The generated contract, `orbit.v1`. Its comments, the API manual, stand in `proto/orbit/v1/`.

// Generated code keeps its own style.
#[expect(clippy::pedantic, clippy::large_enum_variant, reason = "generated")]
// Only the server's half of it says `allow`.
#[cfg_attr(feature = "server", expect(clippy::allow_attributes, reason = "generated"))]
mod generated {
    tonic::include_proto!("orbit.v1");
}

pub use generated::*;

/// All files of the contract with their comments, as a serialised `FileDescriptorSet`.
pub const DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/orbit_descriptor.bin"));
