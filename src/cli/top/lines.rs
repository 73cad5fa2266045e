//! One line per interval, for a pipe, a log or a script. Pure.

use serde_json::json;

use super::change::Delta;
use super::shown;
use super::snapshot::{Snapshot, word};

/// After so many lines the columns are named again.
pub(super) const NAMED_EVERY: u64 = 20;

/// The columns' names, in two lines. Sizes are in binary units, the time is UTC.
pub(super) const NAMES: [&str; 2] = [
    "         --- read/s -- - written/s -  drained  calls --- p99 < ---",
    "     UTC   fast   slow   fast   slow       /s     /s   read  write  dirty  safe",
];

/// The figures of an interval that ended at `time`, `hh:mm:ss`. A dash means: not counted, or did not happen.
pub(super) fn plain(time: &str, snapshot: &Snapshot, change: &Delta) -> String {
    let rate = |amount: Option<u64>| shown::or_dash(amount.map(|amount| change.per_second(amount)), shown::size);
    let p99 = |op: &str| shown::or_dash(change.p99(op), shown::latency);
    let amounts = change.amounts;
    format!(
        "{time} {:>6} {:>6} {:>6} {:>6} {:>8} {:>6} {:>6} {:>6} {:>6}  {}",
        rate(amounts.map(|a| a.read_fast)),
        rate(amounts.map(|a| a.read_slow)),
        rate(amounts.map(|a| a.written_fast)),
        rate(amounts.map(|a| a.written_slow)),
        rate(Some(change.drained)),
        shown::or_dash(amounts.map(|a| change.per_second(a.calls)), shown::count),
        p99("read"),
        p99("write"),
        shown::size(snapshot.stats.safety.bytes as f64),
        word(&snapshot.stats.safety),
    )
}

/// The same as a JSON object: amounts in `span` seconds instead of rates, so that nothing is rounded. `time` is in UTC.
pub(super) fn json(time: &str, mountpoint: &str, snapshot: &Snapshot, change: &Delta) -> String {
    let called: Vec<_> = change.operations.iter().filter(|op| op.calls > 0).collect();
    let mut value = json!({
        "time": time,
        "mountpoint": mountpoint,
        "span": change.span,
        "safety": snapshot.stats.safety,
        "io_path": snapshot.stats.io_path.name,
        "operations": called,
        "read_p99": change.p99("read"),
        "write_p99": change.p99("write"),
    });
    let counted = change.amounts.map(|amounts| json!(amounts));
    for name in ["read_fast", "read_slow", "written_fast", "written_slow", "calls"] {
        value[name] = counted.as_ref().map_or(json!(null), |amounts| amounts[name].clone());
    }
    value["drained"] = json!(change.drained);
    crate::json::line(&value).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::top::change::tests::snapshot;

    #[test]
    fn a_line_has_what_came_in_the_interval_below_its_name() {
        let (before, mut now) = (snapshot(10.0, 0, 0), snapshot(12.0, 4 << 20, 300));
        now.stats.safety.bytes = 3 << 30;
        let change = Delta::between(&before, &now).expect("time went on");
        let line = plain("10:20:30", &now, &change);
        assert_eq!(
            line.split_whitespace().collect::<Vec<_>>(),
            ["10:20:30", "0", "2.0M", "0", "0", "0", "150", "3.0ms", "-", "3.0G", "no"]
        );
        let [above, below] = NAMES;
        assert!(line.len() <= 80 && above.len() <= 80, "{line}");
        let ends = |name: &str, cell: &str| {
            (below.find(name).map(|at| at + name.len()), line.find(cell).map(|at| at + cell.len()))
        };
        let (name, cell) = ends("slow", " 2.0M");
        assert_eq!(name, cell, "{below}\n{line}");
        let (name, cell) = ends("read", "3.0ms");
        assert_eq!(name, cell, "{below}\n{line}");
        let (name, cell) = ends("dirty", "3.0G");
        assert_eq!(name, cell, "{below}\n{line}");
    }

    #[test]
    fn what_is_not_counted_is_not_nothing() {
        let (mut before, mut now) = (snapshot(10.0, 0, 0), snapshot(11.0, 9, 9));
        (before.stats.profile, now.stats.profile) = (false, false);
        now.stats.pipeline.drained_bytes = 512;
        now.stats.operations.clear();
        let change = Delta::between(&before, &now).expect("time went on");
        let line = plain("10:20:30", &now, &change);
        assert_eq!(line.split_whitespace().collect::<Vec<_>>()[1..9], ["-", "-", "-", "-", "512", "-", "-", "-"]);
        let value: serde_json::Value = serde_json::from_str(&json("t", "/mnt", &now, &change)).expect("valid JSON");
        assert!(value["read_fast"].is_null() && value["read_p99"].is_null(), "{value}");
        assert_eq!(
            (&value["drained"], &value["span"], &value["safety"]["safe"]),
            (&json!(512), &json!(1.0), &json!(false))
        );
    }

    #[test]
    fn the_json_has_amounts_and_the_operations_that_were_called() {
        let (before, now) = (snapshot(10.0, 0, 0), snapshot(12.0, 5000, 300));
        let change = Delta::between(&before, &now).expect("time went on");
        let text = json("2026-01-01T00:00:00Z", "/mnt", &now, &change);
        assert!(!text.contains('\n'));
        let value: serde_json::Value = serde_json::from_str(&text).expect("valid JSON");
        assert_eq!((&value["read_slow"], &value["calls"], &value["span"]), (&json!(5000), &json!(300), &json!(2.0)));
        assert_eq!(
            (&value["operations"][0]["op"], &value["operations"][0]["slow_calls"]),
            (&json!("read"), &json!(300))
        );
        let idle = Delta::between(&now, &snapshot(13.0, 5000, 300)).expect("time went on");
        let value: serde_json::Value = serde_json::from_str(&json("t", "/mnt", &now, &idle)).expect("valid JSON");
        assert_eq!((&value["operations"], &value["calls"]), (&json!([]), &json!(0)));
    }
}
