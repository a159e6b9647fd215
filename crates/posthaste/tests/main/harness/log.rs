//! Sees what the library logs.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex, OnceLock};

use tracing::field::{Field, Visit};
use tracing::instrument::WithSubscriber;
use tracing::{Dispatch, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

struct Witness(Arc<Mutex<Vec<String>>>);

impl<S: Subscriber> Layer<S> for Witness {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if event.metadata().target().starts_with("posthaste") {
            let mut line = Line(event.metadata().level().to_string());
            event.record(&mut line);
            self.0.lock().unwrap().push(line.0);
        }
    }
}

/// Level, then `field=value` for each field, the message among them.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

/// What is logged anywhere in the process: a relay and its publishes are tasks of their own.
struct Everywhere;

static WATCHES: Mutex<Vec<Watch>> = Mutex::new(Vec::new());

/// Lines that speak of something, from now on.
#[derive(Clone)]
pub struct Watch {
    of: String,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Watch {
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// How many lines hold this text.
    pub fn count(&self, text: &str) -> usize {
        self.lines.lock().unwrap().iter().filter(|line| line.contains(text)).count()
    }
}

impl<S: Subscriber> Layer<S> for Everywhere {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        for watch in WATCHES.lock().unwrap().iter().filter(|watch| line.0.contains(&watch.of)) {
            watch.lines.lock().unwrap().push(line.0.clone());
        }
    }
}

/// Watches for lines that hold this text, such as an event's id or a table's name, the library's as well as the
/// statements that sqlx logs.
pub fn watch(of: impl Into<String>) -> Watch {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        tracing::subscriber::set_global_default(tracing_subscriber::registry().with(Everywhere)).unwrap();
    });
    let watch = Watch { of: of.into(), lines: Arc::default() };
    WATCHES.lock().unwrap().push(watch.clone());
    watch
}

/// What the library logs while this future runs.
pub async fn lines<T>(future: impl Future<Output = T>) -> (T, Vec<String>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let subscriber = tracing_subscriber::registry().with(Witness(Arc::clone(&seen)));
    let result = heard_by(subscriber, future).await;
    let lines = seen.lock().unwrap().clone();
    (result, lines)
}

/// Runs this future with a subscriber that hears what it logs.
pub async fn heard_by<T>(subscriber: impl Into<Dispatch>, future: impl Future<Output = T>) -> T {
    /// While a process has one subscriber alone, a line that is reached for the first time asks the one of whoever reaches it whether
    /// anybody listens: a relay beside the future has none, and then nobody hears the future by the same line either.
    static ANOTHER: OnceLock<Dispatch> = OnceLock::new();
    ANOTHER.get_or_init(|| Dispatch::new(tracing_subscriber::registry()));
    future.with_subscriber(subscriber).await
}
