//! The `posthaste` binary.
fn main() {}
