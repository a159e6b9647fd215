//! The peers: what a team would use instead. A file for each, in the directory of this one's name.

mod awa;
mod dovecote;
mod graphile_worker;
mod loops;
#[cfg(feature = "obix")]
mod obix;
#[cfg(feature = "outbox-postgres")]
mod outbox_postgres;
mod pgmq;
mod ruststream;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::Contender;
use crate::sample::{CURRENCY, CUSTOMER, Sample, TOTAL};
use crate::server::Database;

/// All that take part.
pub(super) fn all() -> Vec<Box<dyn Contender>> {
    vec![
        #[cfg(feature = "obix")]
        Box::new(obix::Obix::Subscriber),
        #[cfg(feature = "obix")]
        Box::new(obix::Obix::Listener),
        #[cfg(feature = "outbox-postgres")]
        Box::new(outbox_postgres::OutboxPostgres),
        Box::new(dovecote::Dovecote),
        Box::new(ruststream::Ruststream),
        Box::new(graphile_worker::GraphileWorker),
        Box::new(pgmq::Pgmq::Delete),
        Box::new(pgmq::Pgmq::Archive),
        Box::new(awa::Awa),
    ]
}

/// Who does not, and why; said in every report.
pub(crate) const LEFT_OUT: &[(&str, &str)] = &[
    #[cfg(not(feature = "obix"))]
    ("obix", "cannot be built together with outbox-postgres; takes part without --outbox-postgres"),
    #[cfg(not(feature = "outbox-postgres"))]
    (
        "outbox-postgres",
        "cannot be built together with obix; takes part with `cargo xtask bench --outbox-postgres`",
    ),
];

/// The payload of a sample for those who want a type of it. Who delivers one looks at its number alone, as everybody's sink does.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Payload {
    n: u64,
    #[serde(skip_deserializing)]
    customer: &'static str,
    #[serde(skip_deserializing)]
    currency: &'static str,
    #[serde(skip_deserializing)]
    total: &'static str,
    #[serde(skip_deserializing)]
    note: String,
}

impl Payload {
    fn of(sample: &Sample) -> Self {
        let Sample { number: n } = *sample;
        Self { n, customer: CUSTOMER, currency: CURRENCY, total: TOTAL, note: sample.note() }
    }
}

/// A pool of the sqlx that half of them use. No statement is sent just to find out whether a connection is alive.
async fn pool_0_8(database: &Database, most: u32) -> Result<sqlx_0_8::PgPool> {
    let options = sqlx_0_8::postgres::PgPoolOptions::new().max_connections(most).test_before_acquire(false);
    Ok(options.connect(database.url()).await?)
}

/// The same of the sqlx that the others use.
async fn pool(database: &Database, most: u32) -> Result<sqlx::PgPool> {
    let options = sqlx::postgres::PgPoolOptions::new().max_connections(most).test_before_acquire(false);
    Ok(options.connect(database.url()).await?)
}

/// Runs what is not `Send` as the compiler sees it, on a thread of its own.
async fn apart<T: Send + 'static>(work: impl AsyncFnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let runtime = tokio::runtime::Handle::current();
    tokio::task::spawn_blocking(move || runtime.block_on(work())).await?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_with_a_type_is_the_same_as_one_without() {
        for number in [0, 7, 123_456] {
            let sample = Sample::new(number);
            let text = serde_json::to_string(&Payload::of(&sample)).unwrap();
            assert_eq!(text, sample.payload());
            assert_eq!(serde_json::from_str::<Payload>(&text).unwrap().n, number);
        }
    }
}
