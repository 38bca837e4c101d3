//! Behaviour that both buses share, tested on the embedded one; `tests/sessions/redis.rs` tests it
//! on Redis.

use std::sync::Mutex;

use super::*;

#[derive(Default)]
struct RecordingSink(Mutex<Vec<Bytes>>);

impl MessageSink for RecordingSink {
    fn on_message(&self, payload: &Bytes) {
        self.0.lock().unwrap().push(payload.clone());
    }
    fn resync(&self) {}
}

#[tokio::test]
async fn log_keeps_frames_and_listeners_receive() {
    let bus = Bus::embedded(Duration::from_secs(60));
    assert!(matches!(bus.begin_run("s").await, Err(BeginError::Unknown)));
    bus.create_session("s", 77).await.unwrap();
    let begun = bus.begin_run("s").await.unwrap();
    assert_eq!(begun, LogPosition { epoch: 77, last: 0 });
    assert!(matches!(bus.begin_run("s").await, Err(BeginError::Busy)));

    let heard = Arc::new(RecordingSink::default());
    let listening = bus
        .listen("s", ChannelDirection::Down, heard.clone())
        .await
        .unwrap();
    let frame = |n: u64| Bytes::from(format!(r#"{{"type":"token","seq":{n},"epoch":77}}"#));
    for n in 1..=300 {
        bus.post(
            "s",
            &frame(n),
            if n == 1 {
                FramePosition::First
            } else {
                FramePosition::Middle
            },
        );
    }
    drop(listening);
    bus.post("s", &frame(301), FramePosition::Last);
    bus.confirm_posts("s").await.unwrap();
    assert_eq!(heard.0.lock().unwrap().len(), 300);
    assert_eq!(
        bus.read_log_page("s", 0).await.unwrap().len(),
        MAX_LOG_PAGE_FRAMES
    );
    let rest = bus.read_log_page("s", 256).await.unwrap();
    assert_eq!((rest.len(), rest[0].clone()), (45, frame(257)));
    assert_eq!(bus.session_status("s").await.unwrap().newest.seq, Some(301));
    assert_eq!(bus.begin_run("s").await.unwrap().last, 301);

    assert!(bus.close_session("s").await.unwrap());
    assert!(!bus.close_session("s").await.unwrap());
    assert!(matches!(bus.begin_run("s").await, Err(BeginError::Unknown)));
    assert!(
        !bus.read_log_page("s", 0).await.unwrap().is_empty(),
        "readers behind can catch up"
    );
}

#[tokio::test]
async fn send_up_returns_listener_count() {
    let bus = Bus::embedded(Duration::from_secs(60));
    assert_eq!(bus.send_to_backends("s", b"{}").await.unwrap(), 0);
    let heard = Arc::new(RecordingSink::default());
    let listening = bus
        .listen("s", ChannelDirection::Up, heard.clone())
        .await
        .unwrap();
    assert_eq!(bus.send_to_backends("s", b"{}").await.unwrap(), 1);
    drop(listening);
    assert_eq!(bus.send_to_backends("s", b"{}").await.unwrap(), 0);
    assert_eq!(heard.0.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn sessions_expire_after_their_ttl() {
    let bus = Bus::embedded(Duration::from_millis(20));
    bus.create_session("s", 1).await.unwrap();
    tokio::time::sleep(Duration::from_millis(40)).await;
    assert!(matches!(bus.begin_run("s").await, Err(BeginError::Unknown)));
}

#[test]
fn stamps_parse_from_any_frame() {
    let stamp = |frame: &str| FrameStamp::parse(frame.as_bytes());
    let both =
        stamp(r#"{"type":"token","content":"a \"seq\":9","seq":3,"run":1,"epoch":8,"ts":1.5}"#);
    assert_eq!((both.seq, both.epoch), (Some(3), Some(8)));
    assert_eq!(
        stamp(r#"{"type":"token","content":"x"}"#),
        FrameStamp::default()
    );
    assert_eq!(stamp("not json"), FrameStamp::default());
    assert_eq!(stamp(r#"{"seq":-1}"#), FrameStamp::default());
}
