use super::*;

const SEED: u64 = 7;

/// Returns the delays, in microseconds, of requests that arrive at these times (ms).
fn times_us(law: &str, arrivals_ms: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let mut delays = ServerDelays::new(law, SEED).unwrap();
    let arrivals = arrivals_ms.into_iter().map(|ms| (ms + 5_000) * 1_000_000);
    arrivals.map(|at| (delays.next(at) - at) / 1000).collect()
}

fn error(law: &str) -> String {
    ServerDelays::new(law, SEED).unwrap_err().to_string()
}

/// Returns mean, median and maximum of 20,000 delays, in milliseconds.
fn shape(law: &str) -> (f64, f64, f64) {
    let mut times = times_us(law, (0..20_000).map(|n| n * 1000));
    times.sort_unstable();
    let sum: u64 = times.iter().sum();
    let ms = |us: u64| us as f64 / 1000.0;
    (ms(sum) / 20_000.0, ms(times[10_000]), ms(times[19_999]))
}

fn is_near(value: f64, expected: f64, part: f64) -> bool {
    (value - expected).abs() <= expected * part
}

#[test]
fn draws_depend_on_seed_and_number_alone() {
    let law = "law = 'exponential'\nmean = '5ms'";
    assert_eq!(times_us(law, [0, 1, 2, 3]), FIRST_EXPONENTIAL_US);
    assert_eq!(times_us(law, [0, 90, 91, 4000]), FIRST_EXPONENTIAL_US);
    let mut other = ServerDelays::new(law, SEED + 1).unwrap();
    assert_ne!(other.next(0) / 1000, FIRST_EXPONENTIAL_US[0]);
}

/// Every version must draw these from seed 7: later versions check the records of earlier ones.
const FIRST_EXPONENTIAL_US: [u64; 4] = [858, 24_210, 1784, 1001];

#[test]
fn simple_laws_have_their_moments() {
    assert_eq!(
        times_us("law = 'constant'\ndelay = '2ms'", [0, 9]),
        [2000, 2000]
    );
    let (mean, median, _) = shape("law = 'exponential'\nmean = '5ms'");
    assert!(
        is_near(mean, 5.0, 0.04) && is_near(median, 5.0 * 2f64.ln(), 0.05),
        "{mean} {median}"
    );
    let (mean, median, most) =
        shape("law = 'bimodal'\nfast = '2ms'\nslow = '40ms'\nslow_share = 0.1");
    assert!(is_near(mean, 5.8, 0.04), "{mean}");
    assert_eq!((median, most), (2.0, 40.0));
    let (mean, median, _) = shape("law = 'lognormal'\nmedian = '4ms'\nsigma = 0.5");
    assert!(
        is_near(mean, 4.0 * 0.125f64.exp(), 0.04) && is_near(median, 4.0, 0.05),
        "{mean} {median}"
    );
    let (_, median, most) = shape("law = 'pareto'\nmin = '1ms'\nalpha = 1.5\nmax = '100ms'");
    assert!(is_near(median, 2f64.powf(1.0 / 1.5), 0.05), "{median}");
    assert_eq!(most, 100.0);
}

#[test]
fn capacity_queues_in_order_of_arrival() {
    let law = "law = 'capacity'\nplaces = 2\nservice = { law = 'constant', delay = '10ms' }";
    assert_eq!(
        times_us(law, [0, 0, 0, 1, 30]),
        [10_000, 10_000, 20_000, 19_000, 10_000]
    );
}

#[test]
fn collapse_slows_requests_beyond_its_limit() {
    let law = "law = 'collapse'\nlimit = 2\nfactor = 5\nof = { law = 'constant', delay = '10ms' }";
    assert_eq!(
        times_us(law, [0, 1, 2, 11, 60]),
        [10_000, 10_000, 50_000, 10_000, 10_000]
    );
}

#[test]
fn drift_changes_times_evenly_then_stays() {
    let law = "law = 'drift'\nto = 3.0\nover = '10s'\nof = { law = 'constant', delay = '10ms' }";
    assert_eq!(
        times_us(law, [0, 5_000, 10_000, 20_000]),
        [10_000, 20_000, 30_000, 30_000]
    );
}

#[test]
fn stalled_answers_leave_together_at_the_end() {
    let law =
        "law = 'stalls'\nevery = '1s'\nlength = '300ms'\nof = { law = 'constant', delay = '1ms' }";
    let times = times_us(law, 0..20_000);
    let stalled: Vec<u64> = (0u64..)
        .zip(&times)
        .filter(|(_, us)| **us > 1000)
        .map(|(ms, us)| ms * 1000 + us)
        .collect();
    let share = stalled.len() as f64 / 20_000.0;
    assert!((0.1..0.4).contains(&share), "{share}");
    let mut ends = stalled.clone();
    ends.dedup();
    // At one request a millisecond, a stall of 300 ms affects 300 requests.
    let each = stalled.len() as f64 / ends.len() as f64;
    assert!((200.0..=301.0).contains(&each), "{each}");
}

#[test]
fn mixture_draws_laws_by_their_shares() {
    let law = "law = 'mixture'
        [[parts]]
        share = 0.75
        of = { law = 'constant', delay = '1ms' }
        [[parts]]
        share = 0.25
        of = { law = 'constant', delay = '9ms' }";
    let (mean, ..) = shape(law);
    assert!(is_near(mean, 3.0, 0.04), "{mean}");
}

#[test]
fn stalls_stay_where_first_arrival_put_them() {
    let law =
        "law = 'stalls'\nevery = '50ms'\nlength = '30ms'\nof = { law = 'constant', delay = '1ms' }";
    let ms = |n: u64| n * 1_000_000;
    // The first of them came 8 ms late, and two others that were due before it did not.
    let came = [508, 508, 509].into_iter().chain(510..1500).map(ms);
    let due = [500, 504, 509].into_iter().chain(510..1500).map(ms);
    let leave = |delays: ServerDelays, arrivals: &mut dyn Iterator<Item = u64>| {
        let mut delays = delays;
        arrivals.map(|at| delays.next(at)).collect::<Vec<_>>()
    };
    let as_came = leave(ServerDelays::new(law, SEED).unwrap(), &mut came.into_iter());
    let delays = ServerDelays::new(law, SEED).unwrap().with_start(ms(508));
    let on_time = leave(delays, &mut due.into_iter());
    assert_eq!(as_came[2..], on_time[2..]);
    assert_eq!(on_time[..2], [ms(501), ms(505)]);
    let stalled = as_came.windows(2).filter(|pair| pair[0] == pair[1]).count();
    assert!(stalled > 100, "{stalled}");
}

#[test]
fn answers_never_leave_before_their_requests() {
    let mut delays = ServerDelays::new("law = 'constant'\ndelay = '1ms'", SEED).unwrap();
    assert_eq!(delays.next(5_000_000), 6_000_000);
    // A request that arrived earlier may be read later.
    assert_eq!(delays.next(4_000_000), 5_000_000);
    assert_eq!(delays.request_count(), 2);
}

#[test]
fn wrong_law_names_key_and_remedy() {
    for (law, expected) in [
        (
            "delay = '1ms'",
            "missing key `law`: write law = and one of `constant`",
        ),
        (
            "law = 'konstant'",
            "unknown law `konstant`: did you mean `constant`?",
        ),
        (
            "law = 'constant'\ndealy = '1ms'",
            "constant has no key `dealy`: use `delay`",
        ),
        ("law = 'constant'", "missing field `delay`"),
        (
            "law = 'constant'\ndelay = '2h'",
            "delay: 7200s is too long: at most 3600s",
        ),
        (
            "law = 'bimodal'\nfast = '1ms'\nslow = '2ms'\nslow_share = 2.0",
            "slow_share: 2 is not between 0 and 1",
        ),
        (
            "law = 'pareto'\nmin = '2ms'\nmax = '1ms'\nalpha = 1.0",
            "min: 2ms is above max, which is 1ms",
        ),
        (
            "law = 'capacity'\nplaces = 0\nservice = {}",
            "places: 0 is out of range: use 1 to 100000",
        ),
        (
            "law = 'capacity'\nplaces = 1\nservice = { law = 'x' }",
            "service: law: unknown law `x`",
        ),
        (
            "law = 'stalls'\nevery = '1us'\nlength = '1ms'\nof = { law = 'constant', delay = '1ms' }",
            "every: 1us is too short",
        ),
        (
            "law = 'mixture'\nparts = [{ share = 0.5, of = { law = 'constant', delay = '1ms' } }]",
            "shares sum to 0.5",
        ),
        ("law = [", "TOML parse error"),
    ] {
        let said = error(law);
        assert!(said.contains(expected), "{law}: {said}");
    }
    let deep = "law = 'drift'\nto = 2.0\nover = '1s'\nof = ".to_owned()
        + &"{ law = 'drift', to = 2.0, over = '1s', of = ".repeat(9)
        + "{ law = 'constant', delay = '1ms' }"
        + &" }".repeat(9);
    assert!(
        error(&deep).contains("laws nested more than 8 deep"),
        "{}",
        error(&deep)
    );
}
