//! posthaste beside its limits and its peers, in one run on one machine: `cargo xtask bench`.

mod contender;
mod sample;
mod scenario;
mod seen;
mod server;

fn main() {
    let _ = contender::all();
}
