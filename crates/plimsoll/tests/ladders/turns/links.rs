//! Configurations of a sweep that are interleaved at full load, and those measured in slices.

use plimsoll_model::comparisons::ladder::LadderRecord;
use plimsoll_model::runs::run::Run;

use super::support::Place;

/// Two suites, new and resumed: four configurations.
const SWEEP: &str = r#"
name = "links"
[tls]
groups = ["X25519"]
[call.fetch]
[load]
clients = 4
reuse = "never"
warmup = "1s"
[ladder]
serve = ["files"]
suite = ["TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256"]
size = ["1KiB"]
connection = ["new", "resumed"]
"#;

#[test]
fn concurrent_sweep_configurations_are_interleaved() {
    let place = Place::new();
    std::fs::write(place.path("sweep.toml"), SWEEP).unwrap();
    let outline = place.expect(0, &["sweep", "sweep.toml", "--dry-run"]);
    let planned = "all up together, in 18 batches of 100 ms each, in random order within each round, one every 110 ms, after a warm-up of 1.32 s";
    assert!(outline.contains(planned), "{outline}");
    let document = place.expect_json(0, &["sweep", "sweep.toml", "--out", "sweep", "--json"]);
    let links = document["sweep"]["links"].as_array().unwrap();
    assert_eq!(links.len(), 4);
    for link in links {
        assert_eq!(link["slices"], 1, "{link}");
        let [ok, full, resumed] =
            ["ok", "connections_full", "connections_resumed"].map(|key| link[key].as_u64());
        assert_eq!(ok, full.zip(resumed).map(|(full, resumed)| full + resumed));
        assert!(ok > Some(0), "{link}");
        // One connection uses one ticket after another, through all batches.
        let of = if link["connections"] == "resumed" {
            full
        } else {
            resumed
        };
        assert_eq!(of, Some(0), "{link}");
        for end in ["client", "server"] {
            assert!(link[format!("{end}_cpu_us_per_fetch")].is_f64(), "{link}");
            assert!(link[format!("{end}_share_of_limit")].is_f64(), "{link}");
        }
        for figure in ["fetched_per_s", "bytes_per_s"] {
            assert!(link[format!("{figure}_interval")].is_array(), "{link}");
        }
    }
    let link_of = |name: &str| links.iter().find(|link| link["name"] == name).unwrap();
    let record = LadderRecord::load(&place.path("sweep")).unwrap();
    for rung in &record.rungs {
        let run = Run::load(&place.path("sweep").join(&rung.slices[0].run)).unwrap();
        let volume = rung.slices[0].volume.as_ref().unwrap();
        // A batch during which the machine stalls is left out.
        let turns = volume.turns.len();
        assert!((12..=18).contains(&turns), "{turns}");
        assert_eq!(link_of(&rung.name)["batches"], turns);
        let (ok, bytes) = volume.turns.iter().fold((0, 0), |(ok, bytes), turn| {
            assert!(turn.elapsed_s > 0.0, "{turn:?}");
            (ok + turn.ok, bytes + turn.bytes_received)
        });
        let total = &run.summary.total;
        assert_eq!((ok, bytes), (total.ok, total.bytes_received));
        assert_eq!((ok, bytes), (volume.ok, volume.ok * 1024));
        let handshakes = total.connections_full + total.connections_resumed;
        assert_eq!(ok, handshakes, "the TLS library's own count");
    }
    let note = "had batches in random order within each round: 1";
    let report = |rest: &[&str]| place.expect(0, &[&["report", "sweep"], rest].concat());
    let page = place.read("sweep/report.html");
    for shown in [report(&[]), report(&["--markdown", "-"]), page] {
        let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(note), "{shown}");
    }
    assert_eq!(place.read("sweep/metrics.csv").lines().count(), 1 + 2 * 12);
    let junit = report(&["--junit", "-"]);
    assert_eq!(junit.matches("the rung is valid").count(), 4, "{junit}");
}

#[test]
fn sweep_explains_use_of_slices() {
    let place = Place::new();
    let many = "\"load.read_buffer\" = [\"4KiB\", \"8KiB\", \"16KiB\", \"32KiB\", \"64KiB\"]";
    let changed = |from: &str, to: &str| SWEEP.replace(from, to);
    for (plan, why) in [
        (
            changed("suite = ", &format!("{many}\nsuite = ")),
            "20 rungs can't be up together: at most 16 can",
        ),
        (
            changed("[\"1KiB\"]", "[\"1KiB\", \"64MiB\"]"),
            "are too short: confidence intervals need several batches of every configuration",
        ),
        (
            changed("clients = 4", "rate = \"50/s\""),
            "the load has a rate",
        ),
        (format!("{SWEEP}rounds = 1\n"), "slices or rounds are set"),
        (
            format!("target = \"https://localhost:1\"\n{SWEEP}")
                .replace("serve = [\"files\"]\n", ""),
            "the sweep did not start the servers",
        ),
        (
            format!("{SWEEP}[objective]\np99 = \"< 1s\"\n"),
            "objectives and load.precision are judged by whole slices",
        ),
    ] {
        std::fs::write(place.path("sweep.toml"), plan).unwrap();
        let outline = place.expect(0, &["sweep", "sweep.toml", "--dry-run"]);
        let line = outline
            .lines()
            .find(|line| line.starts_with("# in slices, "));
        assert!(line.is_some_and(|line| line.contains(why)), "{outline}");
    }
    // The planned measurements are made and reported.
    let one = SWEEP.replace("suite = ", "slice = \"200ms\"\nsuite = ");
    let one = one.replace(", \"TLS_CHACHA20_POLY1305_SHA256\"", "");
    std::fs::write(place.path("sweep.toml"), one).unwrap();
    let document = place.expect_json(0, &["sweep", "sweep.toml", "--out", "sweep", "--json"]);
    for link in document["sweep"]["links"].as_array().unwrap() {
        assert_eq!(link["batches"], 0, "{link}");
    }
    let notes = document["sweep"]["notes"].to_string();
    assert!(
        notes.contains("in slices: slices or rounds are set"),
        "{notes}"
    );
}
