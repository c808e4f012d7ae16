//! Traces of transfers, as a collector of OpenTelemetry gets them.

mod common;

use common::cluster::{Daemon, socket};
use common::{Place, command, noise, polycast};
use polycast_testing::until;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::Command;
use std::sync::{Arc, Mutex};

/// A collector that takes OTLP over HTTP as JSON, and keeps the spans.
struct Collector {
    address: SocketAddr,
    spans: Arc<Mutex<Vec<Span>>>,
    /// Bodies that were no JSON.
    others: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// A span, and the service that has sent it.
#[derive(Clone, Debug)]
struct Span {
    service: String,
    name: String,
    trace: String,
    id: String,
    parent: String,
    nanos: u64,
    is_error: bool,
    attributes: BTreeMap<String, String>,
}

impl Span {
    fn of(service: &str, value: &Value) -> Self {
        let text = |field: &str| value[field].as_str().unwrap_or_default().to_string();
        let time = |field: &str| text(field).parse::<u64>().unwrap();
        Span {
            service: service.to_string(),
            name: text("name"),
            trace: text("traceId"),
            id: text("spanId"),
            parent: text("parentSpanId"),
            nanos: time("endTimeUnixNano") - time("startTimeUnixNano"),
            is_error: value["status"]["code"] == 2 || value["status"]["code"] == "STATUS_CODE_ERROR",
            attributes: attributes(&value["attributes"]),
        }
    }
}

fn attributes(list: &Value) -> BTreeMap<String, String> {
    let value = |value: &Value| match value.as_object().unwrap().values().next().unwrap() {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let pairs = list.as_array().unwrap().iter();
    pairs.map(|pair| (pair["key"].as_str().unwrap().to_string(), value(&pair["value"]))).collect()
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (spans, others) = (Arc::default(), Arc::default());
        let (kept, kept_others) = (Arc::clone(&spans), Arc::clone(&others));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, kept, others) = (stream.unwrap(), Arc::clone(&kept), Arc::clone(&kept_others));
                std::thread::spawn(move || while answer(&stream, &kept, &others).is_some() {});
            }
        });
        Collector { address, spans, others }
    }

    /// Tells a command where spans go.
    fn told(&self, mut command: Command, service: &str) -> Command {
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", self.address));
        command.env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json").env("OTEL_SERVICE_NAME", service);
        command
    }

    /// The spans, once there are so many.
    fn spans(&self, count: usize) -> Vec<Span> {
        until("the spans have come", || self.spans.lock().unwrap().len() >= count);
        let mut spans = self.spans.lock().unwrap().clone();
        spans.sort_by(|one, other| (&one.name, &one.service).cmp(&(&other.name, &other.service)));
        spans
    }
}

/// Answers one request of a connection; `None` at its end.
fn answer(
    stream: &std::net::TcpStream,
    spans: &Mutex<Vec<Span>>,
    others: &Mutex<Vec<Vec<u8>>>,
) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let (mut first, mut len) = (String::new(), 0);
    reader.read_line(&mut first).ok().filter(|read| *read > 0)?;
    assert!(first.starts_with("POST /v1/traces "), "{first}");
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        if let Some((_, value)) =
            line.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        {
            len = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; len];
    reader.read_exact(&mut body).ok()?;
    let document: Value = serde_json::from_slice(&body).unwrap_or_default();
    if document.is_null() {
        others.lock().unwrap().push(body);
    }
    for resource in document["resourceSpans"].as_array().into_iter().flatten() {
        let service = attributes(&resource["resource"]["attributes"])["service.name"].clone();
        for scope in resource["scopeSpans"].as_array().unwrap() {
            let found = scope["spans"].as_array().unwrap().iter().map(|span| Span::of(&service, span));
            spans.lock().unwrap().extend(found);
        }
    }
    let mut stream = stream;
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}").ok()
}

/// Holds one transfer's spans to be one trace: the source's, one below it for each receiver, and one below
/// that of the receiver itself.
fn check_trace(spans: &[Span], receivers: &[&str], bytes: u64) {
    let of = |name: &str| spans.iter().filter(|span| span.name == name).collect::<Vec<_>>();
    let (sent, delivered, received) = (of("send object"), of("deliver object"), of("receive object"));
    assert_eq!(
        (sent.len(), delivered.len(), received.len()),
        (1, receivers.len(), receivers.len()),
        "{spans:?}"
    );
    assert!(spans.iter().all(|span| span.trace == sent[0].trace && !span.is_error), "{spans:?}");
    assert!(sent[0].parent.trim_matches('0').is_empty());
    for name in receivers {
        let named = |span: &&&Span| span.attributes["polycast.receiver"] == *name;
        let (delivered, received) =
            (delivered.iter().find(named).unwrap(), received.iter().find(named).unwrap());
        assert_eq!((&delivered.parent, &received.parent), (&sent[0].id, &delivered.id));
        assert_eq!(delivered.attributes["polycast.fabric"], "ip-multicast");
        for span in [delivered, received] {
            assert_eq!(span.attributes["polycast.bytes"], bytes.to_string());
            assert!(span.nanos > 0 && span.nanos < 600_000_000_000, "{span:?}");
        }
    }
    let whole = sent[0].attributes["polycast.sent_bytes"].parse::<u64>().unwrap();
    assert!(whole >= bytes, "{:?}", sent[0]);
}

#[test]
fn a_transfer_is_one_trace_in_one_program() {
    let (place, collector) = (Place::new(), Collector::start());
    let file = place.file("f", &noise(3_000_000));
    let ran = collector.told(command(&["cast", &file, "--receivers", "2"]), "one").output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    // It has ended, and nothing is late.
    let spans = collector.spans.lock().unwrap().clone();
    let names: Vec<String> =
        spans.iter().filter_map(|span| span.attributes.get("polycast.receiver").cloned()).collect();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    check_trace(&spans, &names, 3_000_000);
    assert_eq!(names.len(), 2);
}

#[test]
fn agents_tell_of_one_trace_from_both_ends() {
    let (place, collector) = (Place::new(), Collector::start());
    let manager = Daemon::manager("127.0.0.1:0", &[]);
    let agents = ["a", "b", "c"].map(|name| {
        let (store, at) = (place.path(&format!("store-{name}")), socket(&place, name));
        let words =
            ["agent", "--manager", manager.address(), "--name", name, "--interface", "lo", "--port", "0"];
        let words = [&words[..], &["--store", &store, "--socket", &at]].concat();
        Daemon::begin(collector.told(command(&words), name))
    });
    let file = place.file("f", &noise(3_000_000));
    let at = socket(&place, "a");
    until("all have joined", || {
        let ran = polycast(&["nodes", "--json", "--socket", &at]);
        ran.status == 0 && ran.json().as_array().unwrap().len() == 3
    });
    let ran =
        polycast(&["send", &file, "--to", "b,c", "--socket", &at, "--fabric", "ip-multicast", "--or-fail"]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let spans = collector.spans(5);
    check_trace(&spans, &["b", "c"], 3_000_000);
    let from: Vec<(&str, &str)> =
        spans.iter().map(|span| (span.name.as_str(), span.service.as_str())).collect();
    let expected = [
        ("deliver object", "a"),
        ("deliver object", "a"),
        ("receive object", "b"),
        ("receive object", "c"),
        ("send object", "a"),
    ];
    assert_eq!(from, expected);
    drop(agents);
}

/// The usual form of OTLP, which is no JSON.
#[test]
fn spans_come_in_protobuf_unless_told_otherwise() {
    let (place, collector) = (Place::new(), Collector::start());
    let file = place.file("f", &noise(1_000_000));
    let mut cast = collector.told(command(&["cast", &file, "--receivers", "1"]), "one");
    assert!(cast.env_remove("OTEL_EXPORTER_OTLP_PROTOCOL").status().unwrap().success());
    let bodies = collector.others.lock().unwrap().concat();
    for word in ["send object", "deliver object", "receive object", "service.name", "polycast.fabric"] {
        assert!(bodies.windows(word.len()).any(|bytes| bytes == word.as_bytes()), "{word}");
    }
    assert!(collector.spans.lock().unwrap().is_empty());
}

#[test]
fn a_collector_that_is_not_there_holds_nothing_up() {
    let place = Place::new();
    let file = place.file("f", &noise(1_000_000));
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let mut cast = command(&["cast", &file, "--receivers", "1"]);
    cast.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{free}"));
    let ran = cast.output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && said.contains("traces were not taken"), "{said}");
}
