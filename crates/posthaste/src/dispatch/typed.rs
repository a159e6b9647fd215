//! Typed handlers: the payload is decoded for them.

use std::any::type_name;
use std::marker::PhantomData;

use async_trait::async_trait;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use super::{Failure, Handler, IntoFailure, Meta};
use crate::event::Payload;
use crate::sink::Delivery;

/// An async closure or function of a decoded payload and its [`Meta`], as a [`Handler`].
///
/// [`Router::on`](super::Router::on) makes one of its own; this is for payloads that are no typed events, and
/// for the subscribers of a [`Broadcast`](super::Broadcast):
///
/// ```
/// use posthaste::dispatch::Typed;
/// use posthaste::{Failure, Meta, Router};
///
/// #[derive(serde::Deserialize)]
/// struct Moved { sku: String }
///
/// let moved = |moved: Moved, meta: Meta| async move {
///     println!("{} moved ({})", moved.sku, meta.id);
///     Ok::<_, Failure>(())
/// };
/// Router::new().topic("stock.moved.v1", Typed::new(moved)).check()?;
/// # Ok::<_, posthaste::Error>(())
/// ```
///
/// A payload that does not decode is rejected: trying again would not change it. The reason says the type and
/// where decoding stopped, and none of the payload's values.
pub struct Typed<T, F> {
    handler: F,
    // It makes values of the type and holds none.
    payload: PhantomData<fn() -> T>,
}

impl<T, F> Typed<T, F> {
    /// A handler that decodes what this closure takes.
    pub fn new<R, E>(handler: F) -> Self
    where
        T: DeserializeOwned + Send + 'static,
        F: Fn(T, Meta) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), E>> + Send,
        E: IntoFailure,
    {
        Self { handler, payload: PhantomData }
    }
}

impl<T, F> std::fmt::Debug for Typed<T, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Typed<{}>", type_name::<T>())
    }
}

#[async_trait]
impl<T, F, R, E> Handler for Typed<T, F>
where
    T: DeserializeOwned + Send + 'static,
    F: Fn(T, Meta) -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), E>> + Send,
    E: IntoFailure,
{
    async fn handle(&self, delivery: &Delivery) -> Result<(), Failure> {
        let payload: T = decode(delivery.event.payload())?;
        (self.handler)(payload, Meta::from(delivery)).await.map_err(IntoFailure::into_failure)
    }
}

fn decode<T: DeserializeOwned>(payload: &Payload) -> Result<T, Failure> {
    let wanted = type_name::<T>();
    let Some(json) = payload.as_json() else {
        let content_type = payload.content_type();
        return Err(Failure::reject(format!(
            "the payload is {content_type}, not JSON to decode as {wanted}"
        )));
    };
    serde_json::from_str(json).map_err(|error| {
        // serde's own words quote the value they stumbled over.
        let said = error.to_string();
        let what = match error.classify() {
            // The name of a missing field is the type's, not the payload's.
            Category::Data if said.starts_with("missing field") => {
                said.split_once(" at line").map_or("a field is missing", |(what, _)| what)
            }
            Category::Data => "a field is of another type or value",
            Category::Eof => "it ends too early",
            Category::Syntax | Category::Io => "it is not JSON",
        };
        let (line, column) = (error.line(), error.column());
        Failure::reject(format!(
            "the payload does not decode as {wanted}: {what}, at line {line} column {column}"
        ))
    })
}
