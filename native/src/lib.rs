//! The native front of cagrpc's gRPC servers: it owns the sockets, answers hot read calls from ready bytes without Python,
//! and forwards every other call to the Python server behind it. See docs/decisions/0035.

mod answers;
mod bodies;
mod connections;
mod front;
mod keys;
mod server;

#[pyo3::pymodule]
mod cagrpc_native {
    #[pymodule_export]
    use super::answers::Answers;
    #[pymodule_export]
    use super::front::Front;

    /// Of this module with `cagrpc.services.grpc.native`: another number means that it was built for another cagrpc.
    #[pymodule_export]
    const INTERFACE: u32 = 3;
}
