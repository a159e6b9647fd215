//! `posthaste demo`: the first minute. A shop writes orders and their events, a relay delivers them, and at the end the
//! database itself is asked whether the promise was kept: an event for every order that was committed, and none for
//! those that were not.
//!
//! | file | what is in it |
//! |---|---|
//! | `shop.rs` | the producer: orders and events in one transaction, some of them rolled back |
//! | `customers.rs` | where the events go: most are taken at once, some slowly, some never |
//! | `figures.rs` | the live line |
//! | `summary.rs` | what the database says at the end |

mod customers;
mod figures;
mod shop;
mod summary;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use posthaste::sink::Sink;
use posthaste::store;

use crate::args::Place;
use crate::config::settings::Settings;
use crate::config::{Config, mistake};
use crate::daemon::log::Voice;
use crate::daemon::signals::Signals;
use crate::daemon::{Daemon, Opened};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::http::Server;
use crate::{json, when};

use self::customers::Customers;
use self::figures::Figures;
use self::shop::Shop;
use self::summary::Summary;

/// The demo's table; the one that every command takes where nothing is said.
const TABLE: &str = "outbox";

/// The file in its directory; the one that every command takes where nothing is said.
const FILE: &str = "posthaste.db";

/// Into how many lanes its stream is divided.
const LANES: u16 = 4;

/// After how many attempts a poison event is given up.
const ATTEMPTS: u32 = 3;

#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Stop after this long, such as 30s [default: at Ctrl-C]
    #[arg(long = "for", value_name = "DURATION", value_parser = when::duration)]
    pub(crate) length: Option<Duration>,
    /// Orders per second
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) rate: u32,
    /// Use a stream: each customer's orders arrive in their order
    #[arg(long)]
    pub(crate) stream: bool,
    /// Keep the database in this directory, to look at it afterwards [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs it to its end.
pub(crate) async fn run(place: &Place, args: &DemoArgs) -> Result<Exit, Failure> {
    let directory = Directory::new(args.keep.as_deref())?;
    let url = directory.url();
    let (settings, Said { log, address }) = settings(place, args, &url)?;
    let mut logged = settings.log.clone();
    if !log {
        // What fails here is meant to: the line of figures says it better.
        "off".clone_into(&mut logged.level);
    }
    let voice = Voice::start(&logged);
    let mut signals = Signals::new()?;

    let customers = Arc::new(Customers::default());
    let sinks: BTreeMap<String, Arc<dyn Sink>> =
        BTreeMap::from([("customers".to_owned(), Arc::clone(&customers) as _)]);
    let store = store::connect(&url, TABLE).await?;
    let shop = Arc::new(Shop::open(&directory.file(), args.stream).await?);
    let daemon = Daemon::with_sinks(settings, sinks.clone());
    // A relay that runs on this machine already must not spoil the first minute.
    let server =
        if address { Server::start(&daemon).await? } else { Server::start_anywhere(&daemon).await? };
    for table in daemon.tables().values() {
        let relay = table.builder(shop.outbox().relay(), daemon.settings(), &sinks).start().await?;
        table.adopt(Opened::new(Arc::clone(&store), true), relay);
    }
    if let Some(server) = &server {
        voice.say(super::relay::serving(server));
    }
    voice.say(introduction(args, &directory));

    let figures = Figures::start(&shop, &customers, &store);
    let enough = async {
        match args.length {
            Some(length) => tokio::time::sleep(length).await,
            None => std::future::pending().await,
        }
    };
    let mut selling = tokio::spawn({
        let (shop, rate) = (Arc::clone(&shop), args.rate);
        async move { shop.sell(rate).await }
    });
    tokio::select! {
        sold = &mut selling => sold.unwrap_or_else(|error| Err(ended(&error)))?,
        failure = daemon.broken() => return Err(failure),
        _ = signals.next() => {}
        () = enough => {}
    }
    shop.closes();
    selling.await.unwrap_or_else(|error| Err(ended(&error)))?;
    figures.stop().await;
    super::relay::drain(&daemon, server, &mut signals, voice.silent()).await;
    let summary = Summary::of(&url, &shop, &customers, args.stream).await;
    shop.close().await;
    answer(&summary?, args, &directory)
}

fn ended(error: &tokio::task::JoinError) -> Failure {
    Failure::new(Exit::Failed, format!("the demo's shop has ended badly ({error}); please report it"))
}

/// What somebody has settings of their own for.
struct Said {
    log: bool,
    address: bool,
}

/// The relay's settings, and what of them was said by somebody.
fn settings(place: &Place, args: &DemoArgs, url: &str) -> Result<(Settings, Said), Failure> {
    let mut own = vec![
        "sinks.customers.kind=stdout".to_owned(),
        format!("relay.max_attempts={ATTEMPTS}"),
        "relay.backoff_first=200ms".to_owned(),
        "relay.backoff_longest=500ms".to_owned(),
        // The database is asked about them at the end.
        "cleaner.enabled=false".to_owned(),
        format!("topics.\"{}\".on_dead=skip", shop::TOPIC),
    ];
    if args.stream {
        own.push(format!("tables.{TABLE}.mode=stream"));
        own.push(format!("tables.{TABLE}.lanes={LANES}"));
    }
    own.extend(place.set.iter().cloned());
    let place =
        Place { database: Some(url.to_owned()), table: Some(TABLE.to_owned()), config: None, set: own };
    let config = Config::load_for_demo(&place);
    let settings = config.settings().map_err(|mistakes| mistake::failure(&mistakes))?;
    Ok((settings, Said { log: config.is_set("log.level"), address: config.is_set("http.listen") }))
}

fn introduction(args: &DemoArgs, directory: &Directory) -> String {
    let (kind, ordered) = if args.stream {
        (format!("a stream with {LANES} lanes"), ", each customer's in order")
    } else {
        ("a queue".to_owned(), "")
    };
    let length = args
        .length
        .map_or_else(|| "Ctrl-C".to_owned(), |length| format!("{} or Ctrl-C", when::length(length)));
    format!(
        "A shop takes {} orders a second and writes each with its event in one transaction, in {}.\n\
         One order in ten is rolled back, one in twenty is handled slowly, one in fifty is poison.\n\
         A relay delivers the events, from {kind}{ordered}. Until {length}:",
        args.rate,
        directory.file().display(),
    )
}

fn answer(summary: &Summary, args: &DemoArgs, directory: &Directory) -> Result<Exit, Failure> {
    let mut out = std::io::stdout().lock();
    if args.json {
        json::write(&mut out, &summary.json())?;
    } else {
        out.write_all(summary.text().as_bytes())?;
        out.write_all(next(directory).as_bytes())?;
    }
    if summary.holds() {
        return Ok(Exit::Ok);
    }
    Err(Failure::new(
        Exit::Failed,
        "the figures do not add up, which is a mistake in posthaste; please report it",
    ))
}

/// What to try next.
fn next(directory: &Directory) -> String {
    let program = std::env::args().next().unwrap_or_else(|| "posthaste".to_owned());
    let mut text = String::from("\nTry next:\n");
    if directory.kept {
        let file = directory.file();
        text += &format!(
            "  {program} --database sqlite://{0} dead list\n  {program} --database sqlite://{0} relay\n",
            file.display()
        );
    } else {
        text += &format!(
            "  {program} demo --keep shop --for 10s    it leaves a database, and says how to look at it\n"
        );
    }
    text +=
        &format!("  {program} relay                         a relay of your own, here, that prints events\n");
    text += &format!("  {program} enqueue order.placed.v1 '{{\"order\": 42}}'    from another terminal\n");
    text
}

/// Where the demo's database is; a temporary one is gone at the end.
struct Directory {
    path: PathBuf,
    kept: bool,
}

impl Directory {
    fn new(keep: Option<&FilePath>) -> Result<Self, Failure> {
        let path = keep.map_or_else(
            || std::env::temp_dir().join(format!("posthaste-demo-{}", std::process::id())),
            FilePath::to_owned,
        );
        let directory = Self { kept: keep.is_some(), path };
        if directory.file().exists() {
            let message = format!(
                "{} is there already; name another directory with --keep",
                directory.file().display()
            );
            return Err(Failure::new(Exit::BadInput, message));
        }
        std::fs::create_dir_all(&directory.path).map_err(|error| {
            let path = directory.path.display();
            Failure::new(
                Exit::BadInput,
                format!("cannot make the directory {path} ({error}); name another with --keep"),
            )
        })?;
        Ok(directory)
    }

    fn file(&self) -> PathBuf {
        self.path.join(FILE)
    }

    fn url(&self) -> String {
        format!("sqlite://{}", self.file().display())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if !self.kept {
            // Whatever is left of it is in the system's directory for such things.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
