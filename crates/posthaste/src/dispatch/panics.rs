//! Panics of handlers, subscribers and interceptors: one's panic is its failure and nobody else's.

use std::any::Any;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;

/// Runs a future to its end; a panic is an error that says what it said.
pub(crate) async fn caught<F: Future>(future: F) -> Result<F::Output, Box<dyn Any + Send>> {
    // What it shared with the rest of the process is its own affair, as with a panicking thread.
    AssertUnwindSafe(future).catch_unwind().await
}

/// What a panic said, as an error's text.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let said = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(|s| &**s));
    match said {
        Some(said) => format!("panicked: {said}"),
        None => "panicked".to_owned(),
    }
}
