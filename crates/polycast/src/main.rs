//! Deliver one object to many machines.
fn main() {}
