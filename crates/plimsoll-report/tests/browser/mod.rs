//! A browser for opening pages, controlled through its DevTools protocol.
//!
//! All of its complaints, and all requests besides the page itself, are recorded.

#![allow(
    dead_code,
    reason = "a test binary uses what it needs of this, and no other part"
)]

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use tungstenite::{Message, WebSocket};

/// The viewport of a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Viewport {
    pub(crate) name: &'static str,
    pub(crate) width: u32,
    pub(crate) dark: bool,
    pub(crate) print: bool,
}

/// The result of opening a page.
#[derive(Debug)]
pub(crate) struct PageInspection {
    /// Console messages, exceptions, and external requests.
    pub(crate) problems: Vec<String>,
    /// Width of the document, in CSS pixels.
    pub(crate) content_width: u64,
    pub(crate) content_height: u64,
    /// A screenshot of the whole page (PNG).
    pub(crate) picture: Vec<u8>,
}

pub(crate) struct Browser {
    child: Child,
    socket: WebSocket<TcpStream>,
    session: String,
    next: u64,
    problems: Vec<String>,
    loaded: bool,
    _profile: tempfile::TempDir,
}

impl Browser {
    pub(crate) fn start() -> Browser {
        let profile = tempfile::tempdir().expect("a directory");
        let mut child = Command::new("chromium")
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
                "--remote-debugging-port=0",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("chromium is missing: tests/setup.sh tests installs it");
        let mut said = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        let url = loop {
            line.clear();
            let n = said.read_line(&mut line).expect("text");
            assert!(n > 0, "chromium ended before it listened");
            if let Some(url) = line.trim().strip_prefix("DevTools listening on ") {
                break url.to_owned();
            }
        };
        // Later output must not fill the pipe.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        let address = url
            .strip_prefix("ws://")
            .and_then(|rest| rest.split('/').next())
            .expect("an address");
        let stream = TcpStream::connect(address).expect("connected");
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .expect("a timeout");
        let (socket, _) = tungstenite::client(url.as_str(), stream).expect("a WebSocket");
        let mut browser = Browser {
            child,
            socket,
            session: String::new(),
            next: 0,
            problems: Vec::new(),
            loaded: false,
            _profile: profile,
        };
        let target = browser.ask("Target.createTarget", json!({ "url": "about:blank" }));
        let attached = browser.ask(
            "Target.attachToTarget",
            json!({ "targetId": target["targetId"], "flatten": true }),
        );
        browser.session = attached["sessionId"]
            .as_str()
            .expect("a session")
            .to_owned();
        for domain in ["Page", "Log", "Runtime", "Network"] {
            browser.ask(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Opens the file `page` and inspects it.
    pub(crate) fn open(&mut self, page: &Path, look: Viewport) -> PageInspection {
        self.open_at(&format!("file://{}", page.display()), look)
    }

    /// Opens the page at `url` and inspects it.
    pub(crate) fn open_at(&mut self, url: &str, look: Viewport) -> PageInspection {
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            json!({ "width": look.width, "height": 900, "deviceScaleFactor": 1, "mobile": look.width < 600 }),
        );
        let scheme = if look.dark { "dark" } else { "light" };
        self.ask(
            "Emulation.setEmulatedMedia",
            json!({
                "media": if look.print { "print" } else { "" },
                "features": [{ "name": "prefers-color-scheme", "value": scheme }],
            }),
        );
        self.problems.clear();
        self.loaded = false;
        self.ask("Page.navigate", json!({ "url": url }));
        self.wait_for_page();
        let metrics = self.ask("Page.getLayoutMetrics", json!({}));
        let size = &metrics["cssContentSize"];
        let pixels = |key: &str| size[key].as_f64().expect("a size").ceil() as u64;
        let (content_width, content_height) = (pixels("width"), pixels("height"));
        let shot = self.ask(
            "Page.captureScreenshot",
            json!({
                "format": "png",
                "captureBeyondViewport": true,
                "clip": { "x": 0, "y": 0, "width": content_width, "height": content_height, "scale": 1 },
            }),
        );
        let picture = BASE64
            .decode(shot["data"].as_str().expect("a picture"))
            .expect("base64");
        PageInspection {
            problems: std::mem::take(&mut self.problems)
                .into_iter()
                .filter(|problem| *problem != format!("asked for {url}"))
                .collect(),
            content_width,
            content_height,
            picture,
        }
    }

    /// Evaluates an expression that navigates to another page, and waits until that is loaded.
    pub(crate) fn navigate(&mut self, expression: &str) {
        self.problems.clear();
        self.loaded = false;
        self.ask("Runtime.evaluate", json!({ "expression": expression }));
        self.wait_for_page();
    }

    /// Evaluates an expression on the page as text.
    pub(crate) fn text(&mut self, expression: &str) -> String {
        let answer = self.ask("Runtime.evaluate", json!({ "expression": expression }));
        let value = answer["result"]["value"].as_str();
        value
            .unwrap_or_else(|| panic!("{expression}: {answer}"))
            .to_owned()
    }

    fn wait_for_page(&mut self) {
        while !self.loaded {
            let event = self.receive();
            self.record_event(&event);
        }
    }

    /// Evaluates an expression on the page as a number.
    pub(crate) fn number(&mut self, expression: &str) -> f64 {
        let answer = self.ask("Runtime.evaluate", json!({ "expression": expression }));
        answer["result"]["value"]
            .as_f64()
            .unwrap_or_else(|| panic!("{expression}: {answer}"))
    }

    fn ask(&mut self, method: &str, parameters: Value) -> Value {
        self.next += 1;
        let id = self.next;
        let mut question = json!({ "id": id, "method": method, "params": parameters });
        if !self.session.is_empty() {
            question["sessionId"] = self.session.as_str().into();
        }
        self.socket
            .send(Message::text(question.to_string()))
            .expect("asked");
        loop {
            let answer = self.receive();
            if answer["id"] == id {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].clone();
            }
            self.record_event(&answer);
        }
    }

    fn receive(&mut self) -> Value {
        loop {
            match self.socket.read().expect("chromium answers") {
                Message::Text(text) => return serde_json::from_str(&text).expect("JSON"),
                Message::Close(_) => panic!("chromium has gone"),
                _ => {}
            }
        }
    }

    fn record_event(&mut self, event: &Value) {
        let given = &event["params"];
        match event["method"].as_str() {
            Some("Page.loadEventFired") => self.loaded = true,
            Some("Log.entryAdded") => self
                .problems
                .push(format!("log: {}", given["entry"]["text"])),
            Some("Runtime.consoleAPICalled") => {
                self.problems.push(format!("console: {}", given["args"]));
            }
            Some("Runtime.exceptionThrown") => {
                self.problems
                    .push(format!("exception: {}", given["exceptionDetails"]));
            }
            Some("Network.requestWillBeSent") => {
                let url = given["request"]["url"].as_str().unwrap_or_default();
                // The empty icon is part of the page itself.
                if !url.starts_with("data:") {
                    self.problems.push(format!("asked for {url}"));
                }
            }
            _ => {}
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.session.clear();
        let close = json!({ "id": self.next + 1, "method": "Browser.close" });
        let _ = self.socket.send(Message::text(close.to_string()));
        for _ in 0..100 {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
