use super::*;

#[test]
fn times_are_clamped_to_one_hour() {
    let mut times = TimeHistogram::default();
    times.record(u64::MAX);
    times.record(0);
    let histogram = times.histogram().unwrap();
    assert_eq!(histogram.len(), 2);
    assert!(histogram.max() >= MAX_TIME_NS && histogram.max() < MAX_TIME_NS + MAX_TIME_NS / 500);
    assert_eq!(histogram.min(), 0);
}
