//! Runs under fire; see the library of the same name.

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((command, rest)) if command == "crash-child" => posthaste_torture::crash::child::run(rest),
        _ => anyhow::bail!("there is one command: crash-child"),
    }
}
