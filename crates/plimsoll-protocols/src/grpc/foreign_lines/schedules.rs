//! Translates ghz's schedules of changing rates to steps.

use crate::interface::foreign::command_lines::LineBuilder;

/// Adds the steps of a schedule of rates.
///
/// # Errors
/// Returns an error if a number is missing or malformed, or if the schedule never reaches its end rate.
pub(super) fn add_rate_steps(line: &mut LineBuilder, kind: &str) -> Result<(), String> {
    let number = |line: &LineBuilder, name: &str| -> Result<Option<f64>, String> {
        let Some(text) = line.value(name) else {
            return Ok(None);
        };
        let read = text.trim_start_matches('+').parse::<f64>();
        read.map(Some)
            .map_err(|_| format!("--{name}: `{text}` is not a number"))
    };
    let start = number(line, "load-start")?.unwrap_or(1.0);
    let step = number(line, "load-step")?.unwrap_or(1.0);
    let end = number(line, "load-end")?;
    let most = line.value("load-max-duration").and_then(parse_seconds);
    let calls = line.number("n", 200) as f64;
    let limit = line.value("z").and_then(parse_seconds);
    let each = line.value("load-step-duration").and_then(parse_seconds);
    let end = match (end, most.or(limit)) {
        (Some(end), _) => end,
        (None, Some(time)) if kind == "line" => start + step * time,
        (None, Some(time)) => start + step * (time / each.unwrap_or(time)).floor(),
        // Without an end rate or a time limit, the rate rises until all calls are made.
        (None, None) if kind == "line" => (start * start + 2.0 * step * calls).sqrt(),
        (None, None) => find_final_rate(start, step, each.unwrap_or(1.0), calls),
    };
    let mut steps = if kind == "line" {
        build_linear_ramp(start, step, end)?
    } else {
        let each = each.ok_or("the length of a step is missing: --load-step-duration 5s")?;
        build_staircase(start, step, end, each)?
    };
    // Returns how long the last rate is kept: until the command line's time limit, or else its number of calls, is
    // reached.
    let until = |rate: f64, made: f64, past: f64| match limit {
        Some(limit) => limit - past,
        None => (calls - made) / rate.max(1.0),
    };
    let (mut made, mut past) = (0.0, 0.0);
    for (from, to, time) in &steps {
        made += (from + to) / 2.0 * time;
        past += time;
    }
    let rest = until(end, made, past);
    if rest > 0.0 {
        match steps.last_mut() {
            Some((from, _, time)) if (*from - end).abs() < f64::EPSILON => *time += rest,
            _ => steps.push((end, end, rest)),
        }
    }
    for (from, to, time) in steps {
        let time = (time * 1000.0).round();
        if from == to {
            line.add("--step", format_args!("{time}ms:{from}/s"));
        } else {
            line.add("--step", format_args!("{time}ms:{from}/s..{to}/s"));
        }
    }
    Ok(())
}

/// The rates at the beginning and at the end of a step, and the step's duration in seconds.
type RateStep = (f64, f64, f64);

/// Maximum number of steps that are written to a command line.
const MAX_STEPS: usize = 100;

/// Returns the rate of the step in which the last call is made.
fn find_final_rate(start: f64, step: f64, each: f64, calls: f64) -> f64 {
    let (mut rate, mut made) = (start, start * each);
    while made < calls && step > 0.0 {
        rate += step;
        made += rate * each;
    }
    rate
}

fn build_linear_ramp(start: f64, slope: f64, end: f64) -> Result<Vec<RateStep>, String> {
    let time = (end - start) / slope;
    if time > 0.0 && time.is_finite() {
        Ok(vec![(start, end, time)])
    } else {
        Err(format!(
            "--load-step: {slope} never leads from {start} to {end}"
        ))
    }
}

fn build_staircase(start: f64, step: f64, end: f64, each: f64) -> Result<Vec<RateStep>, String> {
    let count = ((end - start) / step).floor();
    if !(count >= 0.0 && count < MAX_STEPS as f64) {
        return Err(format!(
            "--load-step: {step} does not lead from {start} to {end} in {MAX_STEPS} steps"
        ));
    }
    let rates = (0..=count as u32).map(|index| start + step * f64::from(index));
    Ok(rates.map(|rate| (rate, rate, each)).collect())
}

/// Converts a duration with a single unit (`5s`) to seconds; returns `None` for any other text.
fn parse_seconds(time: &str) -> Option<f64> {
    let at = time.find(|c: char| c.is_ascii_alphabetic())?;
    let number: f64 = time[..at].parse().ok()?;
    let unit = match &time[at..] {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    Some(number * unit).filter(|seconds| *seconds > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_rise_to_their_ends() {
        let rising = build_staircase(50.0, 50.0, 150.0, 0.3).expect("steps");
        let rates: Vec<f64> = rising.iter().map(|(rate, ..)| *rate).collect();
        assert_eq!(rates, [50.0, 100.0, 150.0]);
        let falling = build_staircase(150.0, -50.0, 50.0, 1.0).expect("steps");
        assert_eq!(falling.len(), 3);
        assert_eq!(
            build_linear_ramp(10.0, 5.0, 60.0),
            Ok(vec![(10.0, 60.0, 10.0)])
        );
        assert!(build_linear_ramp(10.0, -5.0, 60.0).is_err());
        assert!(build_staircase(1.0, 0.0, 5.0, 1.0).is_err());
        assert!(build_staircase(1.0, -1.0, 5.0, 1.0).is_err());
        assert_eq!(find_final_rate(10.0, 10.0, 1.0, 60.0), 30.0);
        assert_eq!(find_final_rate(10.0, -10.0, 1.0, 60.0), 10.0);
    }
}
