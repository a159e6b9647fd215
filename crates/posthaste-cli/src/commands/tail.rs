//! `posthaste events tail`: events as they are committed.

use std::io::{self, Write};

use posthaste::store::Record;
use posthaste::{Admin, ErrorKind};

use crate::args::TailOf;
use crate::daemon::signals::Interrupt;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::json::{self, EventJson};
use crate::target::{LOOK, Target};
use crate::{table, when};

/// Prints events until somebody has seen enough.
pub(super) async fn run(target: &Target, asked: TailOf, out: &mut impl Write) -> Result<Exit, Failure> {
    let admin = Admin::new(target.open().await?).within(LOOK);
    let now = admin.now().await?;
    let filter = asked.which.filter(now);
    let since = filter.since;
    let mut tail = admin.tail(filter, since).await?;
    let mut enough = Interrupt::new()?;
    // So that whoever waits for it knows from when on it looks.
    writeln!(io::stderr(), "following table {}; Ctrl-C ends it", target.table())?;
    let mut warned = false;
    loop {
        let looked = tokio::select! {
            looked = tail.look() => looked,
            () = enough.next() => return Ok(Exit::Ok),
        };
        let more = match looked {
            Ok(looked) => {
                for record in &looked.events {
                    tell(record, asked.json, out)?;
                }
                out.flush()?;
                if looked.overlooked && !warned {
                    warned = true;
                    writeln!(
                        io::stderr(),
                        "posthaste: table {}: more than 10000 sequences are missing at once (transactions that are \
                         open, rolled back or met duplicates); events that are committed late may be overlooked",
                        target.table()
                    )?;
                }
                looked.more
            }
            // A database that is away for a while is waited for.
            Err(error) if *error.kind() == ErrorKind::Unreachable => {
                writeln!(io::stderr(), "posthaste: {error}")?;
                false
            }
            Err(error) => return Err(error.into()),
        };
        if more {
            continue;
        }
        tokio::select! {
            () = tokio::time::sleep(asked.every) => {}
            () = enough.next() => return Ok(Exit::Ok),
        }
    }
}

/// One event, a line.
fn tell(record: &Record, json: bool, out: &mut impl Write) -> Result<(), Failure> {
    if json {
        return json::line(out, &EventJson::new(record));
    }
    let line = format!(
        "{}  {}  {}  {}  {}",
        when::stamp(record.created_at),
        record.sequence,
        record.id,
        table::topic(record),
        table::aggregate_of(record),
    );
    writeln!(out, "{}", table::visible(&line, false))?;
    Ok(())
}
