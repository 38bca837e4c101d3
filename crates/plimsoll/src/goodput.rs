//! `--goodput`: what a query, whose answer is tokens, has to meet to be counted as good.

use std::str::FromStr;

use plimsoll_model::spec::GoodputSpec;
use plimsoll_model::units::Period;

/// One bound, as typed: `KEY=TIME`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound(Key, Period);

#[derive(Clone, Copy, Debug)]
enum Key {
    FirstToken,
    TimePerToken,
    Query,
}

impl FromStr for Bound {
    type Err = String;

    fn from_str(typed: &str) -> Result<Bound, String> {
        let (key, time) = typed
            .split_once('=')
            .ok_or("write KEY=TIME, such as first_token=500ms")?;
        let key = match key {
            "first_token" | "ttft" => Key::FirstToken,
            "time_per_token" | "tpot" => Key::TimePerToken,
            "query" | "e2e" => Key::Query,
            other => {
                return Err(format!(
                    "`{other}` is not one of first_token (ttft), time_per_token (tpot), query (e2e)"
                ));
            }
        };
        let time = time.parse::<Period>().map_err(|e| e.to_string())?;
        Ok(Bound(key, time))
    }
}

/// All of them; `None` where there is none.
pub(crate) fn spec(bounds: &[Bound]) -> Option<GoodputSpec> {
    if bounds.is_empty() {
        return None;
    }
    let mut spec = GoodputSpec::default();
    for Bound(key, time) in bounds {
        let place = match key {
            Key::FirstToken => &mut spec.first_token,
            Key::TimePerToken => &mut spec.time_per_token,
            Key::Query => &mut spec.query,
        };
        *place = Some(*time);
    }
    Some(spec)
}
