//! Every path, and the rules that hold for all of them.

use std::time::Instant;

use axum::Router;
use axum::extract::{Request, State};
use axum::handler::Handler;
use axum::http::{HeaderValue, Method, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing;

use super::problem::{Kind, Problem};
use super::{Served, api, health, limits, metrics, openapi};

/// The paths and what answers each; it knows their names, which a router does not tell.
pub(super) struct Routes {
    router: Router<Served>,
    #[cfg_attr(not(test), allow(dead_code, reason = "the OpenAPI document is compared with it"))]
    listed: Vec<(&'static str, String)>,
}

/// All of them.
pub(super) fn all(metrics_path: &str) -> Routes {
    Routes { router: Router::new(), listed: Vec::new() }
        .get("/healthz", health::healthz)
        .get("/readyz", health::readyz)
        .get(metrics_path, metrics::scrape)
        .get("/api/v1/openapi.json", openapi::document)
        .get("/api/v1/status", api::status::status)
        .get("/api/v1/tables/{table}/events", api::events::list)
        .post("/api/v1/tables/{table}/events", api::events::enqueue)
        .get("/api/v1/tables/{table}/events/{id}", api::events::show)
        .get("/api/v1/tables/{table}/dead", api::dead::list)
        .post("/api/v1/tables/{table}/dead/replay", api::dead::replay)
        .post("/api/v1/tables/{table}/dead/discard", api::dead::discard)
        .post("/api/v1/tables/{table}/purge", api::purge::purge)
        .get("/api/v1/tables/{table}/lanes", api::stream::lanes)
        .get("/api/v1/tables/{table}/blocked", api::stream::blocked)
        .post("/api/v1/relays/{table}/pause", api::relays::pause)
        .post("/api/v1/relays/{table}/resume", api::relays::resume)
        .post("/api/v1/relays/{table}/trigger", api::relays::trigger)
        .post("/api/v1/relays/{table}/sinks/{sink}/pause", api::sinks::pause)
        .post("/api/v1/relays/{table}/sinks/{sink}/resume", api::sinks::resume)
}

impl Routes {
    fn get<T: 'static>(self, path: &str, handler: impl Handler<T, Served>) -> Self {
        self.add("get", path, routing::get(handler))
    }

    fn post<T: 'static>(self, path: &str, handler: impl Handler<T, Served>) -> Self {
        self.add("post", path, routing::post(handler))
    }

    fn add(mut self, method: &'static str, path: &str, route: routing::MethodRouter<Served>) -> Self {
        self.listed.push((method, path.to_owned()));
        Self { router: self.router.route(path, route), ..self }
    }

    /// Method and path of each.
    #[cfg(test)]
    pub(super) fn listed(&self) -> &[(&'static str, String)] {
        &self.listed
    }

    pub(super) fn router(self, served: Served) -> Router {
        self.router
            .fallback(no_such_path)
            .method_not_allowed_fallback(no_such_method)
            .layer(middleware::from_fn_with_state(served.clone(), guard))
            .with_state(served)
    }
}

async fn no_such_path(uri: Uri) -> Problem {
    Problem::missing(format!("there is no {:.200}; /api/v1/openapi.json lists what there is", uri.path()))
}

async fn no_such_method(method: Method, uri: Uri) -> Problem {
    let message = format!("{:.200} does not answer to {method}; see the header Allow", uri.path());
    Problem::new(Kind::MethodNotAllowed, message)
}

/// Around every request: who may ask, how long the answer may take, and a line in the log. Neither queries nor bodies are
/// in it.
async fn guard(State(served): State<Served>, request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let began = Instant::now();
    let mut answer = match served.inner.access.check(&request) {
        Err(problem) => problem.into_response(),
        Ok(()) => tokio::time::timeout(limits::REQUEST, next.run(request)).await.unwrap_or_else(|_| {
            let message = format!(
                "not done within {:?}; what was done of it stays done, and the rest can be asked for again",
                limits::REQUEST
            );
            Problem::new(Kind::Unavailable, message).into_response()
        }),
    };
    if answer.status() == axum::http::StatusCode::UNAUTHORIZED {
        answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    let headers = answer.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    tracing::debug!(%method, path, status = answer.status().as_u16(), took = ?began.elapsed(), "answered a request");
    answer
}
