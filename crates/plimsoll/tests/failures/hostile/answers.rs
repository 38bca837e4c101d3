//! Servers that answer some calls and then misbehave.

use super::*;

/// With an open loop a late machine sends many calls at once, all of which would be in flight when
/// a connection ends.
const FEW_IN_FLIGHT: [&str; 4] = ["--clients", "2", "--calls", "200"];

#[test]
fn connection_reset_fails_only_calls_in_flight() {
    let place = Place::new();
    let port = server(|stream| {
        serve_grpc(&stream, held(), answer_first(10));
        // Closing without lingering resets the connection, with a call in flight.
        let _ = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
    });
    let run = run_load(&place, 0, &score_load(&plaintext(port), &FEW_IN_FLIGHT));
    assert_eq!(run["total"]["due"], 200);
    let errors = errors(&run);
    assert!(
        matches!(errors[..], [("RESET", n)] if (1..=100).contains(&n)),
        "{errors:?}"
    );
    assert!(run["total"]["connections_full"].as_u64() > Some(5), "{run}");
}

#[test]
fn server_half_close_fails_as_connection_closed() {
    let place = Place::new();
    let port = server(|stream| {
        serve_grpc(&stream, held(), answer_first(10));
        let _ = stream.shutdown(Shutdown::Write);
        discard_input(&stream);
    });
    let run = run_load(&place, 0, &score_load(&plaintext(port), &FEW_IN_FLIGHT));
    assert_eq!(run["total"]["due"], 200);
    let errors = errors(&run);
    assert!(
        matches!(errors[..], [("CONNECTION_CLOSED", n)] if (1..=100).contains(&n)),
        "{errors:?}"
    );
}

#[test]
fn garbage_between_answers_fails_calls() {
    let place = Place::new();
    static SEED: AtomicU32 = AtomicU32::new(1);
    let port = server(|mut stream| {
        serve_grpc(&stream, held(), answer_first(10));
        let _ = stream.write_all(&random_bytes(SEED.fetch_add(1, Ordering::Relaxed)));
        let _ = stream.shutdown(Shutdown::Write);
        discard_input(&stream);
    });
    let run = run_load(&place, 0, &score_load(&plaintext(port), &FEW_IN_FLIGHT));
    assert!(run["total"]["ok"].as_u64() >= Some(100), "{run}");
    let errors = errors(&run);
    assert!(!errors.is_empty());
    for (code, _) in errors {
        // Garbage that looks like a short unknown frame is skipped, as RFC 9113 §5.5 asks.
        assert!(
            matches!(code, "PROTOCOL_ERROR" | "CONNECTION_CLOSED" | "GOAWAY"),
            "{run}"
        );
    }
}

#[test]
fn bytewise_responses_succeed_without_deadline() {
    let place = Place::new();
    let port = server(|mut stream| {
        let drip = |bytes: &[u8]| {
            bytes.iter().all(|byte| {
                thread::sleep(Duration::from_millis(20));
                stream
                    .try_clone()
                    .is_ok_and(|mut s| s.write_all(&[*byte]).is_ok())
            })
        };
        let mut answer = answer_first(usize::MAX);
        serve_grpc(&stream, held(), |connection, out, held| {
            let whole = answer(connection, out, held) && drip(out);
            out.clear();
            whole
        });
        let _ = stream.flush();
    });
    let url = plaintext(port);
    // Slow responses are valid.
    let run = run_load(
        &place,
        0,
        &score_load(&url, &["--clients", "1", "--calls", "2"]),
    );
    assert_eq!(run["total"]["ok"], 2, "{run}");
    assert!(run["total"]["service"]["min_us"].as_f64() > Some(500_000.0));
    // A deadline makes slow responses fail.
    let flags = ["--clients", "1", "--calls", "1", "--deadline", "200ms"];
    let run = run_load(&place, 1, &score_load(&url, &flags));
    assert_eq!(errors(&run), [("DEADLINE_EXCEEDED", 1)]);
    let patience = ["--connect-timeout", "100ms"];
    assert_fails_everywhere(
        &place,
        &url,
        &patience,
        "CONNECT_TIMEOUT",
        "--connect-timeout",
    );
}

#[test]
fn repeated_goaways_fail_only_unserved_calls() {
    let place = Place::new();
    // A graceful server announces GOAWAY first, and answers every call that arrives until the
    // client has closed.
    let port = server(|stream| {
        let mut answer = answer_first(usize::MAX);
        let mut announced = false;
        serve_grpc(&stream, held(), |connection, out, held| {
            let goes_on = answer(connection, out, held);
            if !announced && connection.answer_count() >= 5 {
                announced = true;
                connection.announce_goaway(out);
            }
            goes_on
        });
    });
    let flags = ["--rate", "500/s", "--duration", "2s"];
    let run = run_load(&place, 0, &score_load(&plaintext(port), &flags));
    assert_eq!(run["total"]["ok"], 1000, "{run}");
    assert!(
        run["total"]["connections_full"].as_u64() > Some(50),
        "{run}"
    );

    // An abrupt server: the fifth call is the last one processed, whatever is in flight.
    let port = server(|stream| {
        let options = CannedOptions {
            goaway_after: Some(5),
            ..CannedOptions::default()
        };
        serve_grpc(&stream, options, |_, _, _| true);
    });
    let run = run_load(&place, 0, &score_load(&plaintext(port), &FEW_IN_FLIGHT));
    assert_eq!(run["total"]["due"], 200, "{run}");
    assert!(run["total"]["ok"].as_u64() > Some(100), "{run}");
    for (code, _) in errors(&run) {
        assert_eq!(code, "GOAWAY", "{run}");
    }
}

#[test]
fn refused_and_reset_streams_have_own_codes() {
    let place = Place::new();
    for (error, code) in [
        (ErrorCode::REFUSED_STREAM, "STREAM_REFUSED"),
        (ErrorCode::INTERNAL_ERROR, "STREAM_RESET"),
    ] {
        let port = server(move |stream| {
            let options = CannedOptions {
                reset_every: Some((4, error)),
                ..CannedOptions::default()
            };
            serve_grpc(&stream, options, |_, _, _| true);
        });
        let flags = ["--clients", "1", "--calls", "100"];
        let once = [&flags[..], &["--no-retry"]].concat();
        let run = run_load(&place, 0, &score_load(&plaintext(port), &once));
        assert_eq!(run["total"]["ok"], 75, "{run}");
        assert_eq!(errors(&run), [(code, 25)]);
        // A refused stream was not processed.
        if error == ErrorCode::REFUSED_STREAM {
            let run = run_load(&place, 0, &score_load(&plaintext(port), &flags));
            assert_eq!(run["total"]["ok"], 100, "{run}");
        }
    }
}

#[test]
fn unanswered_calls_fail_by_deadline() {
    let place = Place::new();
    let port = server(|stream| serve_grpc(&stream, held(), |_, _, _| true));
    let url = plaintext(port);
    let flags = ["--rate", "100/s", "--calls", "20", "--deadline", "200ms"];
    let run = run_load(&place, 1, &score_load(&url, &flags));
    assert_eq!(errors(&run), [("DEADLINE_EXCEEDED", 20)]);
    assert!(
        run["total"]["failed"]["min_us"].as_f64() >= Some(199_000.0),
        "{run}"
    );
    // Without a deadline the end of the run ends the calls.
    let flags = [
        "--rate",
        "100/s",
        "--calls",
        "20",
        "--deadline",
        "none",
        "--drain",
        "200ms",
    ];
    let run = run_load(&place, 1, &score_load(&url, &flags));
    assert_eq!(errors(&run), []);
    let cut_off = &run["total"]["cut_off_by_code"][0];
    assert_eq!(cut_off["code"], "CUT_OFF", "{run}");
    assert_eq!(cut_off["count"], 20, "{run}");
}
