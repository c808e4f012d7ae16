//! The view as a browser asks for it, and as those who may not see it do.

use super::*;
use crate::http::tests::page_at;
use std::sync::atomic::Ordering;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Only a fault takes as long.
const HANG: Duration = Duration::from_secs(60);
const TOKEN: &str = "0123456789abcdef0123";

fn with_token() -> Access {
    let path =
        std::env::temp_dir().join(format!("polycast-view-{}-{:?}", std::process::id(), Instant::now()));
    std::fs::write(&path, TOKEN).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let token = Some(Token::read(&path).unwrap());
    std::fs::remove_file(path).unwrap();
    Access { token, names: vec!["gpu-1".into()] }
}

/// A request whose answer is read bit by bit.
struct Asked(TcpStream);

impl Asked {
    async fn begin(address: SocketAddr, request: &str, headers: &str) -> Self {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let host = if headers.contains("Host:") { "" } else { "Host: localhost\r\n" };
        let text = format!("{request} HTTP/1.1\r\n{host}{headers}\r\n");
        stream.write_all(text.as_bytes()).await.unwrap();
        Asked(stream)
    }

    /// Answer up to this text, or to its end.
    async fn until(&mut self, part: &str) -> String {
        let mut answer = Vec::new();
        let mut bytes = [0; 4_096];
        while !String::from_utf8_lossy(&answer).contains(part) {
            match timeout(HANG, self.0.read(&mut bytes)).await.expect("it is answered").unwrap_or(0) {
                0 => break,
                len => answer.extend_from_slice(&bytes[..len]),
            }
        }
        String::from_utf8(answer).unwrap()
    }
}

async fn ask(address: SocketAddr, request: &str, headers: &str) -> String {
    Asked::begin(address, request, &format!("{headers}Connection: close\r\n")).await.until("\0").await
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("none")
}

/// A place for a listener is free a moment after that one has gone.
async fn listen(address: SocketAddr) -> Asked {
    let begun = Instant::now();
    loop {
        let mut asked = Asked::begin(address, "GET /view/events", "").await;
        if asked.until("\n\n").await.contains("data:") {
            return asked;
        }
        assert!(begun.elapsed() < HANG, "no place");
    }
}

#[tokio::test]
async fn the_page_is_whole_and_lets_no_other_script_run() {
    let (address, daemon) = page_at("127.0.0.1:0", Access::default()).await;
    let mut nonces = Vec::new();
    for path in ["GET /", "GET /view", "GET /view?token=odd"] {
        let answer = ask(address, path, "").await;
        assert_eq!(status(&answer), "200", "{answer}");
        let (head, page) = answer.split_once("\r\n\r\n").unwrap();
        let nonce = head.split("script-src 'nonce-").nth(1).unwrap().split('\'').next().unwrap();
        assert!(nonce.len() == 32 && head.contains("default-src 'none'"), "{head}");
        for header in ["cache-control: no-store", "x-frame-options: DENY", "x-content-type-options: nosniff"]
        {
            assert!(head.contains(header), "{head}");
        }
        assert_eq!(page.matches(nonce).count(), 2, "one script and one style");
        assert_eq!(page.replace(nonce, NONCE), PAGE, "nothing of the daemon is in the page");
        let page = page.replace("\"http://www.w3.org/2000/svg\"", "the name of a kind of elements");
        for foreign in ["http:", "https:", " src=", "@import", "url(", "innerHTML", "onclick", "style=\""] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        nonces.push(nonce.to_string());
    }
    nonces.dedup();
    assert_eq!(nonces.len(), 3, "each answer has its own");
    assert_eq!(daemon.1.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn names_are_text_in_the_events() {
    let (address, _daemon) = page_at("127.0.0.1:0", Access::default()).await;
    let told = Asked::begin(address, "GET /view/events", "").await.until("\n\n").await;
    assert!(told.contains("content-type: text/event-stream\r\n"), "{told}");
    assert!(told.contains(r#""name":"<script>alert(1)</script>\n""#), "{told}");
}

#[tokio::test]
async fn only_reading_is_possible_and_no_other_site_is_let_in() {
    let (address, daemon) = page_at("127.0.0.1:0", Access::default()).await;
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"] {
        for path in ["/", "/view", "/view/events"] {
            let answer = ask(address, &format!("{method} {path}"), "").await;
            assert_eq!(status(&answer), "405", "{method} {path}: {answer}");
            assert!(!answer.contains("access-control"), "{answer}");
        }
    }
    for header in [
        "Sec-Fetch-Site: cross-site\r\n",
        "Sec-Fetch-Site: same-site\r\n",
        "Origin: http://evil.example\r\n",
        "Origin: null\r\n",
        "Origin: http://localhost:8080\r\n",
    ] {
        let answer = ask(address, "GET /view/events", header).await;
        assert_eq!(status(&answer), "403", "{header}: {answer}");
        assert!(!answer.contains("access-control"), "{answer}");
    }
    assert_eq!(daemon.1.load(Ordering::Relaxed), 0, "nothing was looked at for them");
    for header in ["Sec-Fetch-Site: same-origin\r\n", "Origin: http://localhost\r\n"] {
        let told = Asked::begin(address, "GET /view/events", header).await.until("\n\n").await;
        assert_eq!(status(&told), "200", "{told}");
    }
}

#[tokio::test]
async fn from_elsewhere_it_takes_the_token() {
    // It is reached from everywhere.
    let (address, daemon) = page_at("0.0.0.0:0", Access::default()).await;
    for path in ["GET /view", "GET /view/events", "GET /view?token=", "GET /view/events?token=undefined"] {
        let answer = ask(address, path, "").await;
        assert!(status(&answer) == "403" && answer.contains("view-token-file in the settings\n"), "{answer}");
    }
    assert_eq!(status(&ask(address, "GET /metrics", "").await), "200", "metrics are as they were");
    let looks = daemon.1.load(Ordering::Relaxed);
    // The token counts on loopback, too, where there is one.
    for listen in ["0.0.0.0:0", "127.0.0.1:0"] {
        let (address, daemon) = page_at(listen, with_token()).await;
        let cookie = |port: &str, token: &str| format!("Cookie: a=b; polycast-view-{port}={token}\r\n");
        for (path, headers) in [
            ("GET /view", String::new()),
            ("GET /view?token=0123456789abcdef012", String::new()),
            ("GET /view?x=1&token=0123456789abcdef0123x", String::new()),
            ("GET /view/events", cookie("", "0123456789abcdef0124")),
            ("GET /view/events", cookie("1", TOKEN)),
        ] {
            let answer = ask(address, path, &headers).await;
            assert!(status(&answer) == "403" && answer.contains("view-token-file"), "{path}: {answer}");
            assert!(!answer.contains("set-cookie"), "{answer}");
        }
        assert_eq!(daemon.1.load(Ordering::Relaxed), 0);
        let shown = ask(address, &format!("GET /view?token={TOKEN}"), "Host: localhost:7480\r\n").await;
        assert_eq!(status(&shown), "303", "{shown}");
        assert!(shown.contains("location: /view\r\n"), "{shown}");
        let set = format!("set-cookie: polycast-view-7480={TOKEN}; Path=/; HttpOnly; SameSite=Lax\r\n");
        assert!(shown.contains(&set), "{shown}");
        assert_eq!(status(&ask(address, "GET /view", &cookie("", TOKEN)).await), "200");
        for (path, headers) in [
            (format!("GET /view/events?token={TOKEN}"), String::new()),
            ("GET /view/events".to_string(), cookie("", TOKEN)),
        ] {
            let told = Asked::begin(address, &path, &headers).await.until("\n\n").await;
            assert!(status(&told) == "200" && told.contains(r#""is_shown":true"#), "{told}");
        }
    }
    assert_eq!(looks, 1);
}

#[tokio::test]
async fn it_is_asked_for_by_its_own_name() {
    let (address, _daemon) = page_at("0.0.0.0:0", with_token()).await;
    let path = format!("GET /view?token={TOKEN}");
    for (host, expected) in [
        ("gpu-1", "303"),
        ("GPU-1:7480", "303"),
        ("10.0.0.1:7480", "303"),
        ("[::1]:7480", "303"),
        ("gpu-1.evil.example", "403"),
        ("evil.example:7480", "403"),
        ("", "403"),
    ] {
        let answer = ask(address, &path, &format!("Host: {host}\r\n")).await;
        assert_eq!(status(&answer), expected, "{host}: {answer}");
    }
}

#[tokio::test]
async fn there_are_so_many_listeners_and_they_share_what_is_looked_at() {
    let (address, daemon) = page_at("127.0.0.1:0", Access::default()).await;
    let begun = Instant::now();
    let mut listeners = Vec::new();
    for _ in 0..LISTENERS_MAX {
        listeners.push(listen(address).await);
    }
    let refused = ask(address, "GET /view/events", "").await;
    assert!(status(&refused) == "503" && refused.contains("8 watch already"), "{refused}");
    assert_eq!(status(&ask(address, "GET /metrics", "").await), "200", "a scrape has a place");
    // The state changes at every look, and each listener hears of it.
    for listener in &mut listeners {
        for _ in 0..3 {
            assert!(listener.until("\n\n").await.contains("data:"));
        }
    }
    let looks = u128::from(daemon.1.load(Ordering::Relaxed));
    assert!(looks <= 2 * begun.elapsed().as_millis() / AGAIN.as_millis() + 3, "{looks}");
    listeners.pop();
    listen(address).await;
}

/// A daemon in which nothing happens.
struct Still;

impl crate::http::Watched for Still {
    fn ready(&self) -> Result<(), String> {
        Ok(())
    }

    fn metrics(&self) -> Vec<crate::http::Metric> {
        Vec::new()
    }

    fn view(&self, _: bool) -> serde_json::Value {
        serde_json::json!({})
    }
}

#[tokio::test]
async fn where_nothing_changes_there_are_signs_of_life_alone() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = crate::http::serve(listener, Arc::new(Still), Access::default(), std::future::pending());
    tokio::spawn(served);
    let told = Asked::begin(address, "GET /view/events", "").await.until(": alive").await;
    assert_eq!(told.matches("data:").count(), 1, "{told}");
    assert!(told.contains(": alive"), "{told}");
}

#[tokio::test]
async fn one_who_listens_is_told_some_times_a_second() {
    let (address, _daemon) = page_at("127.0.0.1:0", Access::default()).await;
    let begun = Instant::now();
    let mut listener = Asked::begin(address, "GET /view/events", "").await;
    let mut told = 0;
    while begun.elapsed() < 4 * AGAIN {
        told += listener.until("\n\n").await.matches("data:").count();
    }
    let most = begun.elapsed().as_millis() / AGAIN.as_millis() + 1;
    assert!((2..=most).contains(&(told as u128)), "{told} of {most}");
}
