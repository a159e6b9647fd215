//! CloudEvents 1.0: the attributes of an event, and the structured mode.
//!
//! | attribute | of the event |
//! |---|---|
//! | `specversion` | `1.0` |
//! | `id` | id |
//! | `source` | as set, else `/posthaste/<table>` |
//! | `type` | event type |
//! | `subject` | aggregate id |
//! | `time` | when it happened |
//! | `datacontenttype` | content type of the payload; the `content-type` header in binary mode |
//! | `dataversion` | version of the payload's schema |
//! | `topic`, `namespace`, `tenantid`, `aggregatetype` | the fields of these names |
//! | `sequence` | place in the table, with leading zeros: compared as text, as the extension of that name wants |
//! | `traceparent`, `tracestate` | the headers of these names, in structured mode; in binary mode they are headers |

use super::encode;
use super::json::Object;
use super::{data, occurred_at};
use crate::sink::Delivery;

/// Content type of the structured mode.
pub(super) const CONTENT_TYPE: &str = "application/cloudevents+json";

/// Headers that are attributes by the extension for distributed tracing.
const TRACE: [&str; 2] = ["traceparent", "tracestate"];

/// The attributes as text, in a fixed order; those that the event lacks are left out.
pub(super) fn attributes(delivery: &Delivery, source: Option<&str>) -> Vec<(&'static str, String)> {
    let event = &delivery.event;
    let source = source.map_or_else(|| default_source(&delivery.table), str::to_owned);
    let mut attributes = vec![
        ("specversion", "1.0".to_owned()),
        ("id", event.id().to_string()),
        ("source", source),
        ("type", event.event_type().to_owned()),
    ];
    let mut optional = |name, value: Option<String>| attributes.extend(value.map(|value| (name, value)));
    optional("subject", event.aggregate_id().map(str::to_owned));
    optional("time", occurred_at(delivery));
    optional("dataversion", Some(event.version().to_string()));
    optional("topic", Some(event.topic().to_owned()));
    optional("namespace", Some(event.namespace().to_owned()));
    optional("tenantid", event.tenant_id().map(str::to_owned));
    optional("aggregatetype", event.aggregate_type().map(str::to_owned));
    optional("sequence", Some(format!("{:019}", delivery.sequence)));
    attributes
}

/// The structured mode: one JSON document.
pub(super) fn structured(delivery: &Delivery, source: Option<&str>) -> Vec<u8> {
    let event = &delivery.event;
    let payload = event.payload();
    let mut object = Object::with_capacity(payload.bytes().len() * 4 / 3 + 640);
    for (name, value) in attributes(delivery, source) {
        if name == "dataversion" {
            object.number(name, event.version().into());
        } else {
            object.text(name, &value);
        }
    }
    for name in TRACE {
        if let Some(value) = event.headers().get(name) {
            object.text(name, value);
        }
    }
    object.text("datacontenttype", payload.content_type());
    data(&mut object, payload, "data", "data_base64");
    object.end()
}

fn default_source(table: &str) -> String {
    format!("/posthaste/{}", encode::path(table))
}
