//! Traces of transfers for OpenTelemetry, sent over OTLP/HTTP.
//!
//! A transfer is one trace: the source's span, below it one for each receiver as the source has seen it, and
//! below that the receiver's own. All ids follow from the transfer's handle, which both ends know: nothing is
//! sent along for them. The variables of OpenTelemetry say where spans go; without one nothing is sent.

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter as _, SpanLinks};
use polycast_agent::transfer::trace::TARGET;
use polycast_net::hash::bytes_hash;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

/// Variables that name the collector.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
/// Variables that name the form of requests.
const FORMS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
/// Spans that wait for the collector; more are dropped, and transfers never wait.
const WAITING_MAX: usize = 4_096;
/// Spans of one request.
const BATCH_MAX: usize = 512;
/// Pause in which the spans of one transfer come together.
const GATHER: Duration = Duration::from_millis(200);
/// Time for the collector to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Spans on their way, and the thread that sends them.
struct Sending {
    spans: SyncSender<SpanData>,
    thread: JoinHandle<()>,
}

static SENDING: Mutex<Option<Sending>> = Mutex::new(None);

/// The layer that makes spans of what transfers tell; `None` where no collector is named.
///
/// # Errors
/// The variables cannot be used.
pub(crate) fn layer<S>() -> Result<Option<impl Layer<S>>, String>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    if !ENDPOINTS.iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty())) {
        return Ok(None);
    }
    let client = Client(ureq::Agent::new_with_config(
        ureq::Agent::config_builder().timeout_global(Some(ANSWER_WITHIN)).http_status_as_error(false).build(),
    ));
    let mut builder = SpanExporter::builder().with_http().with_http_client(client);
    if !FORMS.iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty())) {
        // The crate would take JSON, which it can, and OpenTelemetry says otherwise.
        builder = builder.with_protocol(Protocol::HttpBinary);
    }
    let built = builder.build();
    let mut exporter = built.map_err(|error| format!("traces cannot be sent: {error}"))?;
    let mut resource = Resource::builder();
    if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
        resource = resource.with_service_name("polycast");
    }
    let host = KeyValue::new("host.name", crate::commands::network::machine_name());
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    exporter.set_resource(&resource.with_attributes([host, version]).build());
    let (spans, waiting) = sync_channel(WAITING_MAX);
    let thread = std::thread::spawn(move || send(&exporter, &waiting));
    let layer = Spans(spans.clone());
    *SENDING.lock().unwrap_or_else(PoisonError::into_inner) = Some(Sending { spans, thread });
    Ok(Some(layer.with_filter(Targets::new().with_target(TARGET, LevelFilter::TRACE))))
}

/// Waits until all spans have been sent, or the collector has not answered in its time.
pub(crate) fn finish() {
    let Some(Sending { spans, thread }) = SENDING.lock().unwrap_or_else(PoisonError::into_inner).take()
    else {
        return;
    };
    // The layer holds the channel open as long as the process lives: this is its last word.
    let end = SpanData { name: "".into(), ..made(&Told::default(), SystemTime::now()) };
    if spans.send(end).is_ok() {
        let _ = thread.join();
    }
}

fn send(exporter: &SpanExporter, waiting: &Receiver<SpanData>) {
    let mut is_last = false;
    while !is_last {
        let Ok(first) = waiting.recv() else { return };
        let mut batch = vec![first];
        while batch.len() < BATCH_MAX && batch.last().is_some_and(|span| !span.name.is_empty()) {
            match waiting.recv_timeout(GATHER) {
                Ok(span) => batch.push(span),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        is_last = batch.last().is_some_and(|span| span.name.is_empty());
        batch.retain(|span| !span.name.is_empty());
        if batch.is_empty() {
            continue;
        }
        let count = batch.len();
        if let Err(error) = futures_util::FutureExt::now_or_never(exporter.export(batch)).unwrap_or(Ok(())) {
            tracing::warn!(%error, spans = count, "traces were not taken");
        }
    }
}

/// The client of HTTP that the program has anyway. It answers before its future is asked again.
#[derive(Debug)]
struct Client(ureq::Agent);

#[async_trait::async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (parts, body) = request.into_parts();
        let answer = self.0.run(Request::from_parts(parts, &body[..]))?;
        let (parts, mut body) = answer.into_parts();
        Ok(Response::from_parts(parts, body.read_to_vec()?.into()))
    }
}

/// An event of a transfer's end, as its fields say it.
#[derive(Default)]
struct Told {
    role: String,
    handle: u64,
    ago: f64,
    seconds: f64,
    receiver: String,
    error: String,
    attributes: Vec<KeyValue>,
}

impl Told {
    fn keep(&mut self, field: &Field, value: Value) {
        self.attributes.push(KeyValue::new(format!("polycast.{}", field.name()), value));
    }
}

impl Visit for Told {
    fn record_f64(&mut self, field: &Field, value: f64) {
        match field.name() {
            "ago" => self.ago = value,
            "seconds" => self.seconds = value,
            _ => self.keep(field, value.into()),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "handle" => self.handle = value,
            _ => self.keep(field, i64::try_from(value).unwrap_or(i64::MAX).into()),
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.keep(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "role" => self.role = value.to_string(),
            "error" => self.error = value.to_string(),
            name => {
                if name == "receiver" {
                    self.receiver = value.to_string();
                }
                self.keep(field, value.to_string().into());
            }
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

/// The layer.
struct Spans(SyncSender<SpanData>);

impl<S: Subscriber> Layer<S> for Spans {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut told = Told::default();
        event.record(&mut told);
        // A collector that is slow costs spans, and no transfer.
        let _ = self.0.try_send(made(&told, SystemTime::now()));
    }
}

/// Ids of a trace: the same at both ends, and of no other transfer.
fn ids(handle: u64, role: &str, receiver: &str) -> (TraceId, SpanId) {
    let hash = |text: &str| bytes_hash(format!("polycast trace {handle:016x} {text}").as_bytes());
    let (trace, span) = (hash(""), hash(&format!("{role} {receiver}")));
    (
        TraceId::from_bytes(trace[..16].try_into().expect("16 bytes")),
        SpanId::from_bytes(span[..8].try_into().expect("8 bytes")),
    )
}

/// The span of an event that came at this time.
fn made(told: &Told, now: SystemTime) -> SpanData {
    let (name, kind, above) = match told.role.as_str() {
        "source" => ("send object", SpanKind::Producer, None),
        "delivery" => ("deliver object", SpanKind::Internal, Some(("source", ""))),
        _ => ("receive object", SpanKind::Consumer, Some(("delivery", told.receiver.as_str()))),
    };
    let of_receiver = if told.role == "source" { "" } else { &told.receiver };
    let (trace, span) = ids(told.handle, &told.role, of_receiver);
    let parent = above.map_or(SpanId::INVALID, |(role, receiver)| ids(told.handle, role, receiver).1);
    let span_of = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
    let began = now.checked_sub(span_of(told.ago)).unwrap_or(now);
    SpanData {
        span_context: SpanContext::new(trace, span, TraceFlags::SAMPLED, false, TraceState::default()),
        parent_span_id: parent,
        parent_span_is_remote: told.role == "receiver",
        span_kind: kind,
        name: name.into(),
        start_time: began,
        end_time: began + span_of(told.seconds),
        attributes: told.attributes.clone(),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: if told.error.is_empty() { Status::Ok } else { Status::error(told.error.clone()) },
        instrumentation_scope: InstrumentationScope::builder("polycast").build(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_follow_from_the_handle_and_the_name() {
        let (trace, source) = ids(7, "source", "");
        assert_eq!(ids(7, "delivery", "a").0, trace);
        assert_ne!(ids(8, "source", ""), (trace, source));
        assert_ne!(ids(7, "delivery", "a").1, ids(7, "delivery", "b").1);
        let of = |role: &str, receiver: &str| {
            made(
                &Told {
                    role: role.into(),
                    handle: 7,
                    receiver: receiver.into(),
                    ago: 2.0,
                    seconds: 1.0,
                    ..Told::default()
                },
                SystemTime::now(),
            )
        };
        assert_eq!(of("source", "").parent_span_id, SpanId::INVALID);
        assert_eq!(of("delivery", "a").parent_span_id, of("source", "").span_context.span_id());
        assert_eq!(of("receiver", "a").parent_span_id, of("delivery", "a").span_context.span_id());
        let span = of("receiver", "a");
        assert_eq!(span.end_time.duration_since(span.start_time).unwrap(), Duration::from_secs(1));
    }
}
