use super::*;

#[test]
fn stacks_of_renamed_programs_meet() {
    let mut first = FoldedStacks::default();
    first.add("old;main;hot", 10);
    first.add("sidecar;relay", 10);
    let mut second = FoldedStacks::default();
    second.add("new;main;hot", 10);
    second.add("sidecar;relay", 10);
    let compared = |first, second| RungComparison {
        end: ProfiledEnd::Server,
        name: "second",
        first: ScaledProfile {
            stacks: first,
            scale: 2.0,
        },
        second: ScaledProfile {
            stacks: second,
            scale: 4.0,
        },
        is_time: true,
    };
    assert_eq!(
        compared(&first, &second).folded_lines(),
        [
            "[threads of other names];main;hot 1000 2000",
            "sidecar;relay 1000 2000"
        ]
    );
    // A thread that only one of them has is new.
    let mut more = first.clone();
    more.add("proxy;main", 20);
    let lines = compared(&first, &more).folded_lines();
    assert_eq!(lines[1], "proxy;main 0 2000", "{lines:?}");
}

#[test]
fn few_samples_are_noted() {
    let record: ProfileRecord = serde_json::from_value(json!({
        "schema_version": 2, "event": "cpu-clock", "frequency_hz": 100, "unwinding": "dwarf", "ends": {}
    }))
    .expect("a record");
    let mut end = SampledEndRecord {
        samples: 50,
        sampler_cpu_us: Some(1500),
        ..SampledEndRecord::default()
    };
    let told = sampling_facts(&record, &end, Some(600_000.0));
    assert!(
        told[0].contains("they stand for 500.0 ms of 600.0 ms measured"),
        "{told:?}"
    );
    assert!(told[0].contains("the sampler took 1.50 ms"), "{told:?}");
    assert!(told[1].contains("are few"), "{told:?}");
    end.samples = MIN_RELIABLE_SAMPLES;
    assert_eq!(sampling_facts(&record, &end, None).len(), 1);
}
