//! The Polycast service definitions, generated code and Rust client.
