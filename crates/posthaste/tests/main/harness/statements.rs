//! Sees the statements that sqlx sends, from its own log.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

struct Witness(Arc<Mutex<Vec<String>>>);

impl<S: Subscriber> Layer<S> for Witness {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() == "sqlx::query" {
            let mut statement = Statement::default();
            event.record(&mut statement);
            self.0.lock().unwrap().push(statement.0);
        }
    }
}

/// The whole text where the summary leaves some of it out.
#[derive(Default)]
struct Statement(String);

impl Visit for Statement {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "db.statement" && !value.is_empty()
            || field.name() == "summary" && self.0.is_empty()
        {
            self.0 = value.to_owned();
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}

/// The statements this future sends; those of SQLite, which has a thread of its own, are not seen.
pub async fn texts<T>(future: impl Future<Output = T>) -> (T, Vec<String>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let subscriber = tracing_subscriber::registry().with(Witness(Arc::clone(&seen)));
    let result = super::log::heard_by(subscriber, future).await;
    let texts = seen.lock().unwrap().clone();
    (result, texts)
}

/// How many statements this future sends.
pub async fn count<T>(future: impl Future<Output = T>) -> (T, usize) {
    let (result, texts) = texts(future).await;
    (result, texts.len())
}
