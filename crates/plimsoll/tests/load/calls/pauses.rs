//! Users whose pauses are so long that their connections rest in between.

use std::fs;

use super::support::{CLIENT_TLS, Place, SERVER_TLS};

#[test]
fn connections_over_tls_continue_after_pauses() {
    let place = Place::new();
    place.certificates();
    let server = place.serve(&[&["http"], &SERVER_TLS[..]].concat());
    for version in ["1.1", "2"] {
        let plan = format!(
            "target = \"https://{}\"\n[call.http]\nversion = \"{version}\"\n[load]\nclients = 3\ncalls = 3\n\
             [[steps]]\nname = \"first\"\nmethod = \"POST\"\npath = \"/echo\"\nbody = '{{\"id\": \"{{{{uuid}}}}\"}}'\n\
             take.id = \"/id\"\n\
             [[steps]]\nname = \"next\"\npath = \"/bytes/20000?id={{{{id}}}}\"\npause = \"1s\"\nrepeat = 2\n",
            server.address()
        );
        fs::write(place.path("plan.toml"), plan).expect("a writable folder");
        let folder = format!("run-{version}");
        let words = ["run", "plan.toml", "-q", "--out", &folder];
        place.expect(0, &[&words, &CLIENT_TLS[..]].concat());
        let run = place.run_json(&folder);
        assert_eq!(run["total"]["ok"], 9, "{run}");
    }
    // The sessions of both runs went on, rather than being replaced.
    let (_, printed) = server.stop();
    assert!(printed.contains("answered 18, connections 6,"), "{printed}");
}
