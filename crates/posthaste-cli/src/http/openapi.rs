//! The API for programs: an OpenAPI document, kept by hand beside the routes and held to them by tests.

use axum::response::{IntoResponse, Response};

/// The document.
const DOCUMENT: &str = include_str!("openapi.json");

/// `GET /api/v1/openapi.json`
pub(super) async fn document() -> Response {
    ([("content-type", "application/json")], DOCUMENT).into_response()
}
