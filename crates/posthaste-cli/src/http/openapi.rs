//! The API for programs: an OpenAPI document, kept by hand beside the routes and held to them by tests.

use axum::response::{IntoResponse, Response};

/// The document.
const DOCUMENT: &str = include_str!("openapi.json");

/// `GET /api/v1/openapi.json`
pub(super) async fn document() -> Response {
    ([("content-type", "application/json")], DOCUMENT).into_response()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;
    use crate::http::routes;

    fn document() -> Value {
        serde_json::from_str(DOCUMENT).unwrap()
    }

    /// The paths of the document with their methods.
    fn operations(document: &Value) -> Vec<(String, String, &Value)> {
        let paths = document["paths"].as_object().unwrap().iter();
        let methods = |(path, item): (&String, &'_ Value)| -> Vec<(String, String)> {
            item.as_object().unwrap().keys().map(|method| (method.clone(), path.clone())).collect()
        };
        let named = paths.flat_map(methods);
        named
            .map(|(method, path)| (method.clone(), path.clone(), &document["paths"][&path][&method]))
            .collect()
    }

    #[test]
    fn op5_the_document_has_every_route_and_no_other() {
        let document = document();
        let documented: BTreeSet<(String, String)> =
            operations(&document).into_iter().map(|(method, path, _)| (method, path)).collect();
        let routed = routes::all("/metrics");
        let routed: BTreeSet<(String, String)> =
            routed.listed().iter().map(|(method, path)| ((*method).to_owned(), path.clone())).collect();
        assert_eq!(documented, routed);
    }

    #[test]
    fn op5_every_route_and_kind_of_error_is_on_its_page() {
        let page = include_str!("../../../../docs/src/reference/http.md");
        for (method, path) in routes::all("/metrics").listed() {
            let named = format!("| `{} {path}` |", method.to_uppercase());
            assert!(page.contains(&named), "{named}");
        }
        let document = document();
        let kinds = &document["components"]["schemas"]["Problem"]["properties"]["error"]["properties"]["kind"]
            ["enum"];
        for kind in kinds.as_array().unwrap() {
            assert!(page.contains(&format!("`{}`", kind.as_str().unwrap())), "{kind}");
        }
    }

    #[test]
    fn op5_every_reference_of_the_document_leads_somewhere_and_nothing_is_left_over() {
        fn references<'a>(value: &'a Value, found: &mut BTreeSet<&'a str>) {
            match value {
                Value::Object(fields) => {
                    found.extend(fields.get("$ref").and_then(Value::as_str));
                    fields.values().for_each(|value| references(value, found));
                }
                Value::Array(values) => values.iter().for_each(|value| references(value, found)),
                _ => {}
            }
        }
        let document = document();
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        for reference in &found {
            let pointer = reference.strip_prefix('#').unwrap_or_else(|| panic!("{reference} is not in it"));
            assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
        }
        for kind in ["schemas", "parameters", "responses"] {
            for name in document["components"][kind].as_object().unwrap().keys() {
                let reference = format!("#/components/{kind}/{name}");
                assert!(found.contains(reference.as_str()), "nobody uses {reference}");
            }
        }
    }

    #[test]
    fn op5_operations_say_what_they_take_and_who_may_ask() {
        let document = document();
        let mut ids = BTreeSet::new();
        for (method, path, operation) in operations(&document) {
            assert!(ids.insert(operation["operationId"].as_str().unwrap()), "{path} has the id of another");
            let names = operation["parameters"].as_array().into_iter().flatten().map(|parameter| {
                let pointer = parameter["$ref"].as_str().unwrap().trim_start_matches('#');
                document.pointer(pointer).unwrap()
            });
            let in_path: BTreeSet<&str> = names
                .filter(|parameter| parameter["in"] == "path")
                .map(|parameter| parameter["name"].as_str().unwrap())
                .collect();
            let braced: BTreeSet<&str> =
                path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect();
            assert_eq!(in_path, braced, "{path}");
            let open =
                operation["security"].as_array().unwrap().iter().any(|way| way == &serde_json::json!({}));
            assert_eq!(open, method == "get", "{method} {path}");
        }
    }

    #[test]
    fn op5_the_document_is_of_this_version() {
        assert_eq!(document()["info"]["version"], env!("CARGO_PKG_VERSION"));
        assert!(document()["openapi"].as_str().unwrap().starts_with("3.1."));
    }
}
