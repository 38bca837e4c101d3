use super::*;

#[test]
fn urls_get_default_api_path() {
    for (typed, whole) in [
        ("http://h:1", "http://h:1/v1/chat/completions"),
        ("https://h/", "https://h/v1/chat/completions"),
        ("http://h:1/v1", "http://h:1/v1/chat/completions"),
        ("http://h:1/v1/", "http://h:1/v1/chat/completions"),
        ("http://h:1/api/v1", "http://h:1/api/v1/chat/completions"),
        ("http://h:1/x?y=1", "http://h:1/x?y=1"),
        ("unix:/tmp/s", "unix:/tmp/s:/v1/chat/completions"),
        ("unix:/tmp/s:/v1", "unix:/tmp/s:/v1/chat/completions"),
        ("unix:/tmp/s:/x", "unix:/tmp/s:/x"),
    ] {
        assert_eq!(
            with_api_path(typed, ModelResponseRules::default().api),
            whole
        );
    }
    for (name, whole) in [
        ("completions", "http://h:1/v1/completions"),
        ("responses", "http://h:1/v1/responses"),
        ("messages", "http://h:1/v1/messages"),
    ] {
        assert_eq!(with_api_path("http://h:1", find_api(name).unwrap()), whole);
    }
}
