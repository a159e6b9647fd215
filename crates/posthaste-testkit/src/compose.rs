//! Servers in containers, for a machine that has a Docker engine but not the servers' packages.
//!
//! The services are those of `compose.test.yaml`, under a project name of this target directory's
//! own, so that two clones do not share containers. The ports are picked here and handed over in
//! the environment.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::layout::Layout;

/// Whether a Docker engine answers and `docker compose` is there: the client alone is no use.
pub fn engine_answers() -> bool {
    ["info", "compose version"].iter().all(|arguments| {
        Command::new("docker")
            .args(arguments.split(' '))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    })
}

/// Starts the container of a server and waits until it is healthy.
pub fn up(layout: &Layout, service: &str, port: u16) -> Result<()> {
    let wait = ["up", "--detach", "--wait", "--wait-timeout", "300", service];
    docker_compose(layout, &wait, service, port)
}

/// Stops the container of a server; with `wipe` its data go, too.
pub fn down(layout: &Layout, service: &str, port: u16, wipe: bool) -> Result<()> {
    let arguments: &[&str] =
        if wipe { &["rm", "--stop", "--force", "--volumes", service] } else { &["stop", service] };
    docker_compose(layout, arguments, service, port)
}

fn docker_compose(layout: &Layout, arguments: &[&str], service: &str, port: u16) -> Result<()> {
    let status = Command::new("docker")
        .args(["compose", "--project-name", &layout.tag(), "--file"])
        .arg(layout.root.join("compose.test.yaml"))
        .args(arguments)
        .env(variable(service), port.to_string())
        .stdin(Stdio::null())
        .status()
        .context("cannot run docker")?;
    if !status.success() {
        bail!("`docker compose {}` failed", arguments.join(" "));
    }
    Ok(())
}

/// The variable of the compose file with the port of a service.
fn variable(service: &str) -> String {
    format!("POSTHASTE_{}_PORT", service.to_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compose_file_has_every_service_and_its_port() {
        let file = include_str!("../../../compose.test.yaml");
        for engine in crate::engine::all() {
            let service = engine.name();
            assert!(file.contains(&format!("\n  {service}:\n")), "{service}");
            assert!(file.contains(&variable(service)), "{service}");
        }
    }
}
