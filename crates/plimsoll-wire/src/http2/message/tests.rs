use super::*;

type FieldList = Vec<(&'static [u8], &'static [u8])>;

fn check(list: &FieldList) -> MessageValidator {
    let mut check = MessageValidator::default();
    for (name, value) in list {
        check.check_field(name, value);
    }
    check
}

fn request_problem(list: &FieldList) -> Option<&'static str> {
    let find = |name: &[u8]| {
        let found = list.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| *value)
    };
    check(list).request_problem(find)
}

/// Returns a valid request with its path and authority, followed by these fields.
fn request(more: &[(&'static [u8], &'static [u8])]) -> FieldList {
    let mut list: FieldList = vec![
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/a.B/C"),
        (b":authority", b"host.example:8080"),
    ];
    list.extend_from_slice(more);
    list
}

/// Returns [`request`] with another value of one of its fields.
fn with(name: &'static [u8], value: &'static [u8]) -> FieldList {
    let mut list = request(&[]);
    for field in &mut list {
        if field.0 == name {
            field.1 = value;
        }
    }
    list
}

fn without(name: &[u8]) -> FieldList {
    let mut list = request(&[]);
    list.retain(|(known, _)| *known != name);
    list
}

#[test]
fn valid_requests_are_accepted() {
    for list in [
        request(&[(b"te", b"trailers"), (b"x-a", b"a b\tc \xff")]),
        request(&[(b"host", b"HOST.example:8080"), (b"content-length", b"5")]),
        request(&[(b"cookie", b"a=1"), (b"cookie", b"b=2"), (b"x", b"")]),
        without(b":authority"),
        with(b":path", b"/a?b={\"c\":[1|2]}&d=%20"),
        with(b":authority", b"[::1]:50051"),
        with(b":authority", b"%2Ftmp%2Fsocket"),
        with(b":scheme", b"grpc+x.y-1"),
        vec![
            (b":method", b"OPTIONS"),
            (b":scheme", b"https"),
            (b":path", b"*"),
            (b":authority", b"a"),
            (b"host", b"a:443"),
        ],
        vec![(b":method", b"CONNECT"), (b":authority", b"a:443")],
    ] {
        assert_eq!(request_problem(&list), None, "{list:?}");
    }
}

#[test]
fn malformed_requests_are_rejected() {
    for list in [
        without(b":method"),
        without(b":scheme"),
        without(b":path"),
        with(b":method", b""),
        with(b":method", b"PO ST"),
        with(b":method", b"GET\r\nx: y"),
        with(b":method", b"POST\n"),
        with(b":path", b""),
        with(b":path", b"a.B/C"),
        with(b":path", b"*"),
        with(b":path", b"/a b"),
        with(b":path", b"/a\r\nx: y"),
        with(b":path", b"/a\0"),
        with(b":path", b"/a\x7f"),
        with(b":path", b"/a#b"),
        with(b":path", b"/\xc3\xa4"),
        with(b":scheme", b""),
        with(b":scheme", b"1http"),
        with(b":scheme", b"ht tp"),
        with(b":authority", b""),
        with(b":authority", b"user@host"),
        with(b":authority", b"a b"),
        with(b":authority", b"a\nb"),
        with(b":authority", b"a/b"),
        with(b":authority", b"a:x"),
        with(b":authority", b"a:999999"),
        with(b":authority", b"[::1"),
        with(b":authority", b"::1"),
        request(&[(b":method", b"POST")]),
        request(&[(b":path", b"/a.B/C")]),
        request(&[(b":scheme", b"http")]),
        request(&[(b":authority", b"host.example:8080")]),
        request(&[(b":status", b"200")]),
        request(&[(b":protocol", b"websocket")]),
        request(&[(b":", b"")]),
        request(&[(b"x", b"y"), (b":path", b"/")]),
        request(&[(b"host", b"other.example")]),
        request(&[(b"host", b"host.example:8081")]),
        request(&[
            (b"host", b"host.example:8080"),
            (b"host", b"host.example:8080"),
        ]),
        request(&[(b"host", b"a@host.example:8080")]),
        request(&[(b"content-length", b"")]),
        request(&[(b"content-length", b"+5")]),
        request(&[(b"content-length", b"5,5")]),
        request(&[(b"content-length", b"99999999999999999999")]),
        request(&[(b"content-length", b"5"), (b"content-length", b"5")]),
        request(&[(b"te", b"gzip")]),
        request(&[(b"te", b"trailers, deflate")]),
        request(&[(b"connection", b"close")]),
        request(&[(b"keep-alive", b"1")]),
        request(&[(b"proxy-connection", b"close")]),
        request(&[(b"transfer-encoding", b"chunked")]),
        request(&[(b"upgrade", b"h2c")]),
        request(&[(b"", b"x")]),
        request(&[(b"Upper", b"x")]),
        request(&[(b"a b", b"x")]),
        request(&[(b"a:b", b"x")]),
        request(&[(b"a\r\n", b"x")]),
        request(&[(b"a\0", b"x")]),
        request(&[(b"a(b", b"x")]),
        request(&[(b"\xc3\xa4", b"x")]),
        request(&[(b"x", b"a\r\nb")]),
        request(&[(b"x", b"a\nb")]),
        request(&[(b"x", b"a\rb")]),
        request(&[(b"x", b"a\0b")]),
        request(&[(b"x", b"a\x01b")]),
        request(&[(b"x", b"a\x7fb")]),
        request(&[(b"x", b" a")]),
        request(&[(b"x", b"a\t")]),
        vec![
            (b":method", b"CONNECT"),
            (b":authority", b"a:1"),
            (b":path", b"/"),
        ],
        vec![(b":method", b"CONNECT")],
    ] {
        assert!(request_problem(&list).is_some(), "{list:?}");
    }
}

#[test]
fn response_and_trailer_fields_are_validated() {
    let answer = |status| check(&vec![(b":status", status)]).response_problem();
    assert_eq!(answer(b"200"), None);
    assert_eq!(answer(b"103"), None);
    for status in [
        &b""[..],
        b"2",
        b"20",
        b"2000",
        b"+20",
        b"0xa",
        b"101",
        b"099",
    ] {
        assert!(answer(status).is_some(), "{status:?}");
    }
    for list in [
        vec![],
        vec![(&b":method"[..], &b"GET"[..])],
        vec![(b":status", b"200"), (b":path", b"/")],
        vec![(b":status", b"200"), (b":status", b"200")],
        vec![(b"x", b"y"), (b":status", b"200")],
    ] {
        assert!(check(&list).response_problem().is_some(), "{list:?}");
    }
    assert_eq!(
        check(&vec![(b"grpc-status", b"0")]).trailers_problem(),
        None
    );
    for field in [
        (&b":path"[..], &b"/"[..]),
        (b":authority", b"a"),
        (b":scheme", b"http"),
        (b":status", b"200"),
        (b":method", b"GET"),
        (b"content-length", b"1"),
        (b"host", b"a"),
        (b"x", b"a\nb"),
    ] {
        assert!(
            check(&vec![field]).trailers_problem().is_some(),
            "{field:?}"
        );
    }
}

#[test]
fn body_length_follows_method_and_status() {
    let post = check(&request(&[(b"content-length", b"7")]));
    assert_eq!(post.request_body_length(), Some(7));
    let head = check(&with(b":method", b"HEAD"));
    assert_eq!(head.request_body_length(), None);
    let answer = |status| check(&vec![(b":status", status), (b"content-length", b"9")]);
    assert_eq!(answer(b"200").response_body_length(&post), Some(9));
    assert_eq!(answer(b"200").response_body_length(&head), Some(0));
    assert_eq!(answer(b"304").response_body_length(&post), Some(0));
    assert_eq!(
        check(&vec![(b":status", b"200")]).response_body_length(&post),
        None
    );
}
