//! Private servers of every engine, with the programs that `cargo xtask services up` has found.

use anyhow::{Result, ensure};
use posthaste_testkit::engine::mariadb::MariaDb;
use posthaste_testkit::engine::mysql::MySql;
use posthaste_testkit::engine::nats::Nats;
use posthaste_testkit::engine::postgres::Postgres;
use posthaste_testkit::engine::{Engine, Profile};
use posthaste_testkit::private::{PrivateServer, Site};

/// Crashes a server, starts it again, shuts it down, and looks whether it accepts clients in between.
fn survives(engine: &'static dyn Engine) -> Result<()> {
    let mut server = PrivateServer::start(engine)?;
    let (port, first) = (server.port(), server.pid());
    ensure!(engine.is_ready(port), "it was started");
    server.crash();
    ensure!(!engine.is_ready(port), "it crashed");
    server.start_again()?;
    ensure!(engine.is_ready(port) && server.port() == port && server.pid() != first, "it was started again");
    server.shut_down();
    ensure!(!engine.is_ready(port), "it was shut down");
    Ok(())
}

#[test]
fn a_private_postgres_comes_back_after_a_crash() -> Result<()> {
    survives(&Postgres)
}

#[test]
fn a_private_mysql_comes_back_after_a_crash() -> Result<()> {
    survives(&MySql)
}

#[test]
fn a_private_mariadb_comes_back_after_a_crash() -> Result<()> {
    survives(&MariaDb)
}

#[test]
fn a_private_nats_comes_back_after_a_crash() -> Result<()> {
    survives(&Nats)
}

#[test]
fn a_setting_of_a_test_wins_over_the_profiles() -> Result<()> {
    let site = Site::new(&Postgres, Profile::Private, &["-cmax_connections=7"])?;
    let command = format!("{:?}", site.serve()?);
    let of_profile = command.find("max_connections=100");
    ensure!(of_profile.is_some() && of_profile < command.find("max_connections=7"), "{command}");
    Ok(())
}

#[test]
fn sites_that_race_for_a_template_get_data_of_their_own() -> Result<()> {
    let homes = std::thread::scope(|scope| {
        let racers = [(); 4].map(|()| scope.spawn(|| Site::new(&Nats, Profile::Bench, &[])));
        racers.map(|racer| racer.join().map_err(|_| anyhow::anyhow!("a racer panicked"))?)
    });
    let sites = homes.into_iter().collect::<Result<Vec<Site>>>()?;
    let mut logs: Vec<_> = sites.iter().map(Site::log).collect();
    logs.sort();
    logs.dedup();
    ensure!(logs.len() == 4 && logs.iter().all(|log| log.with_file_name("data").is_dir()), "{logs:?}");
    drop(sites);
    ensure!(logs.iter().all(|log| !log.with_file_name("data").exists()), "data are removed");
    Ok(())
}

/// A server that cannot start says why.
#[test]
fn an_error_has_the_end_of_the_log() -> Result<()> {
    let error = PrivateServer::start_with(&Postgres, Profile::Private, &["-cno_such_setting=1"]).err();
    let error = error.map(|error| error.to_string()).unwrap_or_default();
    ensure!(error.contains("postgres ended with") && error.contains("no_such_setting"), "{error}");
    Ok(())
}
