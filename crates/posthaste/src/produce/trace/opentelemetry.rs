//! The current trace as OpenTelemetry knows it.

use opentelemetry::trace::{SpanContext, TraceContextExt, TraceFlags};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::TraceContext;

/// The trace of the current `tracing` span, else of OpenTelemetry's own current context.
pub(super) fn current() -> Option<TraceContext> {
    // A `tracing` span that no OpenTelemetry layer watches has an empty context.
    of(tracing::Span::current().context().span().span_context())
        .or_else(|| of(opentelemetry::Context::current().span().span_context()))
}

fn of(span: &SpanContext) -> Option<TraceContext> {
    // Version 00 knows the sampled flag; others are not to be passed on.
    let flags = span.trace_flags() & TraceFlags::SAMPLED;
    span.is_valid().then(|| TraceContext {
        traceparent: format!("00-{}-{}-{flags:02x}", span.trace_id(), span.span_id()),
        tracestate: span.trace_state().header(),
    })
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{Span, SpanId, TraceId, TraceState, Tracer, TracerProvider};
    use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
    use tracing::Instrument;
    use tracing::instrument::WithSubscriber;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::store::Store;
    use crate::{Event, Outbox};

    type Outcome = Result<(), Box<dyn std::error::Error>>;

    /// What became of the headers of an event enqueued here and now.
    async fn enqueue(headers: &[(&str, &str)]) -> crate::Result<Vec<(String, String)>> {
        let outbox = Outbox::memory().build()?;
        let event = headers
            .iter()
            .fold(Event::json("order.placed.v1", &1)?, |event, (name, value)| event.header(*name, *value));
        let mut tx = outbox.begin();
        let enqueued = outbox.enqueue(&mut tx, event).await?;
        tx.commit();
        let record = outbox.store().get(enqueued.id).await?;
        Ok(record.and_then(|record| record.event.ok()).into_iter().flat_map(|event| event.headers).collect())
    }

    fn provider(sampler: Sampler) -> SdkTracerProvider {
        SdkTracerProvider::builder().with_sampler(sampler).build()
    }

    #[tokio::test]
    async fn ev6_an_event_gets_the_trace_of_the_current_tracing_span() -> Outcome {
        for (sampler, flags) in [(Sampler::AlwaysOn, "01"), (Sampler::AlwaysOff, "00")] {
            let tracer = provider(sampler).tracer("test");
            let layer = tracing_opentelemetry::layer().with_tracer(tracer);
            let subscriber = tracing_subscriber::registry().with(layer);
            let (headers, expected) = async {
                let span = tracing::info_span!("place order");
                let parent = opentelemetry::Context::new().with_remote_span_context(SpanContext::new(
                    TraceId::from(0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736),
                    SpanId::from(0x00f0_67aa_0ba9_02b7),
                    TraceFlags::SAMPLED,
                    true,
                    "vendor=1,other=2".parse::<TraceState>()?,
                ));
                span.set_parent(parent)?;
                let headers = enqueue(&[("source", "shop")]).instrument(span.clone()).await?;
                let own = span.context().span().span_context().span_id();
                Ok::<_, Box<dyn std::error::Error>>((headers, own))
            }
            .with_subscriber(subscriber)
            .await?;
            let traceparent = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{expected}-{flags}");
            let expected = [
                ("source", "shop"),
                ("traceparent", traceparent.as_str()),
                ("tracestate", "vendor=1,other=2"),
            ];
            assert_eq!(headers, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        }
        Ok(())
    }

    #[tokio::test]
    async fn ev6_without_a_tracing_span_it_is_opentelemetrys_own() -> Outcome {
        let span = provider(Sampler::AlwaysOn).tracer("test").start("place order");
        let expected = span.span_context().clone();
        let guard = opentelemetry::Context::new().with_span(span).attach();
        let headers = enqueue(&[]).await?;
        drop(guard);
        let traceparent = format!("00-{}-{}-01", expected.trace_id(), expected.span_id());
        assert_eq!(headers, [("traceparent".to_owned(), traceparent)]);
        Ok(())
    }

    #[tokio::test]
    async fn ev6_the_callers_own_header_wins() -> Outcome {
        let span = provider(Sampler::AlwaysOn).tracer("test").start("place order");
        let guard = opentelemetry::Context::new().with_span(span).attach();
        let own = [("traceparent", "00-1-2-00"), ("tracestate", "mine=1")];
        let headers = enqueue(&own).await?;
        drop(guard);
        assert_eq!(headers, own.map(|(name, value)| (name.to_owned(), value.to_owned())));
        Ok(())
    }

    #[tokio::test]
    async fn ev6_no_span_no_header() -> Outcome {
        assert_eq!(enqueue(&[]).await?, []);
        // A span that nobody traces is none.
        let subscriber = tracing_subscriber::registry();
        let headers = async { enqueue(&[]).instrument(tracing::info_span!("untraced")).await }
            .with_subscriber(subscriber)
            .await?;
        assert_eq!(headers, []);
        Ok(())
    }
}
