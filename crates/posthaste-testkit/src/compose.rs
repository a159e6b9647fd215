//! Servers in containers, for a machine that has a Docker engine but not the servers' packages.
//!
//! The services are those of `compose.test.yaml`, under a project name of this target directory's
//! own, so that two clones do not share containers. The ports are picked here and handed over in
//! the environment.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::choice::Choice;
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
pub fn up(layout: &Layout, choice: &Choice, port: u16) -> Result<()> {
    let wait = ["up", "--detach", "--wait", "--wait-timeout", "300", choice.engine.name()];
    docker_compose(layout, &wait, choice, port)
}

/// Stops the container of a server; with `wipe` its data go, too.
pub fn down(layout: &Layout, choice: &Choice, port: u16, wipe: bool) -> Result<()> {
    let service = choice.engine.name();
    let arguments: &[&str] =
        if wipe { &["rm", "--stop", "--force", "--volumes", service] } else { &["stop", service] };
    docker_compose(layout, arguments, choice, port)
}

fn docker_compose(layout: &Layout, arguments: &[&str], choice: &Choice, port: u16) -> Result<()> {
    let service = choice.engine.name();
    let mut command = Command::new("docker");
    let mut project = layout.tag();
    if let Some(version) = &choice.version {
        // A project's name has no dots.
        project = format!("{project}-{}", version.replace('.', "-"));
        command.env(variable(service, "VERSION"), version);
    }
    let status = command
        .args(["compose", "--project-name", &project, "--file"])
        .arg(layout.root.join("compose.test.yaml"))
        .args(arguments)
        .env(variable(service, "PORT"), port.to_string())
        .stdin(Stdio::null())
        .status()
        .context("cannot run docker")?;
    if !status.success() {
        bail!("`docker compose {}` failed", arguments.join(" "));
    }
    Ok(())
}

/// The variable of the compose file with the port or the version of a service.
fn variable(service: &str, what: &str) -> String {
    format!("POSTHASTE_{}_{what}", service.to_uppercase())
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
            assert!(file.contains(&variable(service, "PORT")), "{service}");
            assert!(service == "nats" || file.contains(&variable(service, "VERSION")), "{service}");
        }
    }
}
