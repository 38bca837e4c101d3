use std::fs;

use super::*;
use crate::plan::ProfilePlan;

fn stacks(of: &[(&str, u64)]) -> FoldedStacks {
    let mut stacks = FoldedStacks::default();
    for (stack, samples) in of {
        stacks.add(stack, *samples);
    }
    stacks
}

fn profile(of: FoldedStacks) -> RunProfile {
    let plan = ProfilePlan {
        ends: vec![ProfiledEnd::Server],
        frequency_hz: 99,
        unwinding: StackUnwinding::FramePointers,
        proxy_pids: Vec::new(),
    };
    let mut record = ProfileRecord::new(&plan, "cpu-clock");
    let end = SampledEndRecord {
        pids: vec![7],
        samples: of.sample_count(),
        ..SampledEndRecord::default()
    };
    record.ends.insert(ProfiledEnd::Server, end);
    RunProfile {
        record,
        stacks: [(ProfiledEnd::Server, of)].into(),
    }
}

#[test]
fn recursive_function_counts_once_a_stack() {
    let all = stacks(&[
        ("t;main;walk;walk;hash", 3),
        ("t;main;walk;walk", 1),
        ("t", 1),
    ]);
    let functions = all.functions_by_self_samples();
    let named = |name: &str| functions.iter().find(|f| f.name == name).unwrap().clone();
    assert_eq!(functions[0].name, "hash");
    assert_eq!(
        (named("walk").self_samples, named("walk").total_samples),
        (1, 4)
    );
    assert_eq!(named("[unknown]").self_samples, 1);
    assert_eq!(named("main").total_share()[1], 0.8);
    let [low, share, high] = named("hash").self_share();
    assert!(low < share && share < high && share == 0.6);
}

#[test]
fn rare_stacks_beyond_limit_are_summed() {
    let mut all = FoldedStacks::default();
    all.add("t;hot", 1000);
    for n in 0..2 * MAX_STACKS {
        all.add(&format!("t;f{n}"), 1);
    }
    all.merge_rare_stacks(MAX_STACKS);
    assert_eq!(all.sample_count(), 1000 + 2 * MAX_STACKS as u64);
    assert_eq!(all.iter().map(|(_, n)| n).sum::<u64>(), all.sample_count());
    assert!(all.iter().count() <= MAX_STACKS && all.other_stack_sample_count() > 0);
    assert_eq!(all.functions_by_self_samples()[0].name, OTHER_STACKS_FRAME);
    assert!(all.iter().any(|stack| stack == ("t;hot", 1000)));
}

#[test]
fn written_profile_reads_back() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(RunProfile::read(dir.path()).unwrap(), None);
    let mut written = profile(stacks(&[("t;main;a b;c", 3), ("t;main", 2)]));
    written.write(dir.path()).unwrap();
    let folded = fs::read_to_string(dir.path().join("profile-server.folded")).unwrap();
    assert_eq!(folded, "t;main 2\nt;main;a b;c 3\n");
    let mut read = RunProfile::read(dir.path()).unwrap().unwrap();
    assert_eq!(read, written);
    read.merge(&written);
    assert_eq!(read.record.ends[&ProfiledEnd::Server].samples, 10);
    assert_eq!(read.stacks[&ProfiledEnd::Server].sample_count(), 10);
}

#[test]
fn hostile_folded_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    profile(stacks(&[("t;main", 1)])).write(dir.path()).unwrap();
    let file = dir.path().join("profile-server.folded");
    let long = format!("{} 1\n", "x".repeat(MAX_STACK_BYTES + 100));
    let many = "t;main 1\n".repeat(MAX_STACKS + 1);
    let huge = format!("t;main {}\n", u64::MAX);
    for text in [
        &long,
        &many,
        &huge,
        "t;main\n",
        "t;main -1\n",
        "t;main 1e3\n",
    ] {
        fs::write(&file, text).unwrap();
        let error = RunProfile::read(dir.path()).unwrap_err().to_string();
        assert!(error.contains("profile-server.folded"), "{error}");
    }
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &file).unwrap();
    assert!(RunProfile::read(dir.path()).is_err());
    fs::remove_file(&file).unwrap();
    fs::write(&file, b"t;\x1b[31mred\xff 4\nt;main 1").unwrap();
    let read = RunProfile::read(dir.path()).unwrap().unwrap();
    let names: Vec<&str> = read.stacks[&ProfiledEnd::Server]
        .iter()
        .map(|(s, _)| s)
        .collect();
    assert_eq!(names, ["t;main", "t;\u{fffd}[31mred\u{fffd}"]);
}

#[test]
fn long_stacks_keep_their_innermost_frames() {
    let deep = format!("t;{}hot", "frame;".repeat(3 * MAX_FRAMES));
    let wide = format!("t;{};{};hot", "x".repeat(20_000), "y".repeat(20_000));
    let all = stacks(&[
        (&deep, 5),
        (&wide, 7),
        (&"z".repeat(MAX_STACK_BYTES + 1), 1),
    ]);
    let functions = all.functions_by_self_samples();
    let hot = functions.iter().find(|f| f.name == "hot").unwrap();
    assert_eq!(hot.self_samples, 12);
    assert_eq!(all.other_stack_sample_count(), 1);
    assert!(
        all.iter()
            .all(|(stack, _)| stack.starts_with('t') || stack == OTHER_STACKS_FRAME)
    );
}

#[test]
fn profile_of_wide_stacks_can_be_read_again() {
    let mut many = FoldedStacks::default();
    for number in 0..2_500 {
        many.add(&format!("t;{};{number}", "x".repeat(20_000)), 1);
    }
    let dir = tempfile::tempdir().unwrap();
    profile(many).write(dir.path()).unwrap();
    let read = RunProfile::read(dir.path()).unwrap().unwrap();
    assert_eq!(read.stacks[&ProfiledEnd::Server].sample_count(), 2_500);
}

#[test]
fn difference_names_added_function() {
    let first = stacks(&[("t;main;parse", 500), ("t;main;write", 500)]);
    let second = stacks(&[
        ("t;main;parse", 250),
        ("t;main;write", 250),
        ("t;main;hash", 500),
    ]);
    let all = compare_functions(
        ScaledProfile {
            stacks: &first,
            scale: 10.0,
        },
        ScaledProfile {
            stacks: &second,
            scale: 20.0,
        },
    );
    assert_eq!(
        (all[0].name.as_str(), all[0].first, all[0].second),
        ("hash", 0.0, 10.0)
    );
    assert!(!all[0].is_insignificant() && all[0].low > 9.0 && all[0].high < 11.0);
    // Half of the samples of twice the time is as much as before.
    assert!(
        all[1..]
            .iter()
            .all(|d| d.increase() == 0.0 && d.is_insignificant())
    );
}
