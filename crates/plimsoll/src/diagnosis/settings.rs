//! Checks settings of the machine that limit or distort measurements.

use std::fs;
use std::thread;

use plimsoll_engine::transport::descriptors::DescriptorLimit;
use plimsoll_model::formats::quantity::{bytes, count, plural};

use super::MachineFinding;

/// Kernel clock sources that can be read in well below a microsecond.
const FAST_CLOCKS: [&str; 7] = [
    "tsc",
    "kvm-clock",
    "hyperv_clocksource_tsc_page",
    "xen",
    "arch_sys_counter",
    "riscv_clocksource",
    "s390_tod",
];
/// Maximum share of the cores that other programs may use without distorting figures.
const MAX_BUSY_SHARE: f64 = 0.25;
/// Limit of open files below which a finding says how many connections are possible.
const MIN_DESCRIPTORS: u64 = 10_000;
/// Number of local ports below which a finding says how many connections to one address are possible.
const MIN_PORTS: u32 = 25_000;
/// Free memory below which a finding says that there may be too little for many connections.
const MIN_FREE_BYTES: u64 = 512 << 20;

/// Checks all settings. Settings that this machine does not have are left out.
pub(crate) fn check_settings() -> Vec<MachineFinding> {
    let all = [
        Some(check_cores(available_core_count())),
        check_load(
            read_kernel_file("/proc/loadavg").as_deref(),
            machine_core_count(&read_kernel_file("/proc/stat").unwrap_or_default()),
        ),
        check_governor(
            read_kernel_file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").as_deref(),
        ),
        check_clock(
            read_kernel_file("/sys/devices/system/clocksource/clocksource0/current_clocksource")
                .as_deref(),
        ),
        check_descriptors(),
        check_ports(read_kernel_file("/proc/sys/net/ipv4/ip_local_port_range").as_deref()),
        check_memory(read_kernel_file("/proc/meminfo").as_deref()),
        check_profiles(read_kernel_file("/proc/sys/kernel/perf_event_paranoid").as_deref()),
    ];
    all.into_iter().flatten().collect()
}

/// Returns the trimmed text of a file in /proc or /sys; `None` if this machine does not have it.
fn read_kernel_file(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

fn available_core_count() -> usize {
    thread::available_parallelism().map_or(1, |n| n.get())
}

/// Returns the number of cores of the whole machine, which its load average refers to. `stat` is the text of
/// /proc/stat.
fn machine_core_count(stat: &str) -> usize {
    let is_core = |line: &&str| {
        let number = line.strip_prefix("cpu");
        number.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    stat.lines().filter(is_core).count().max(1)
}

fn check_cores(cores: usize) -> MachineFinding {
    let text = plural(cores as u64, "core");
    match cores {
        1 => MachineFinding::limit(
            "cores",
            format!(
                "{text} for this program: a server on this machine shares it with the generator"
            ),
            "measure a server on another machine, or allow two cores",
        ),
        _ => MachineFinding::good("cores", format!("{text} for this program")),
    }
}

/// Checks how busy the machine is. `average` is the text of /proc/loadavg (proc(5)).
fn check_load(average: Option<&str>, cores: usize) -> Option<MachineFinding> {
    let busy: f64 = average?.split_whitespace().next()?.parse().ok()?;
    let text = format!("on average {busy} threads wanted a core in the last minute");
    Some(if busy > MAX_BUSY_SHARE * cores as f64 {
        MachineFinding::distortion(
            "load",
            format!("{text}, and the machine has {cores}: calls will leave late"),
            "stop what else runs here, or measure from another machine; reports bound what can't be avoided",
        )
    } else {
        MachineFinding::good("load", text)
    })
}

/// Checks the frequency governor of the first core; most virtual machines have none.
fn check_governor(governor: Option<&str>) -> Option<MachineFinding> {
    let governor = governor?;
    Some(match governor {
        "performance" => MachineFinding::good("frequency", "governor performance".to_owned()),
        other => MachineFinding::limit(
            "frequency",
            format!(
                "governor {other}: cores are slower when they have little to do, and so are paced calls"
            ),
            "cpupower frequency-set -g performance",
        ),
    })
}

fn check_clock(source: Option<&str>) -> Option<MachineFinding> {
    let source = source?;
    Some(if FAST_CLOCKS.contains(&source) {
        MachineFinding::good("clock", source.to_owned())
    } else {
        MachineFinding::limit(
            "clock",
            format!("{source}: reading the time is a system call, which adds to each call's cost"),
            "see /sys/devices/system/clocksource/clocksource0/available_clocksource for tsc or that of the hypervisor",
        )
    })
}

fn check_descriptors() -> Option<MachineFinding> {
    let limit = DescriptorLimit::for_this_process().ok()?.maximum;
    let text = format!("{} open files: nearly as many connections", count(limit));
    Some(if limit < MIN_DESCRIPTORS {
        MachineFinding::limit(
            "open files",
            text,
            "raise the hard limit (`ulimit -Hn`; LimitNOFILE of a systemd unit), or divide the load with --processes",
        )
    } else {
        MachineFinding::good("open files", text)
    })
}

/// Checks the number of local ports. `range` is the value of net.ipv4.ip_local_port_range.
fn check_ports(range: Option<&str>) -> Option<MachineFinding> {
    let mut ends = range?.split_whitespace().map(str::parse::<u32>);
    let (first, last) = (ends.next()?.ok()?, ends.next()?.ok()?);
    let ports = last.checked_sub(first)? + 1;
    let text = format!(
        "{}: as many connections to one address and port",
        count(u64::from(ports))
    );
    Some(if ports < MIN_PORTS {
        MachineFinding::limit(
            "local ports",
            text,
            "sysctl net.ipv4.ip_local_port_range='1024 65535', or give more local addresses: --source",
        )
    } else {
        MachineFinding::good("local ports", text)
    })
}

/// Checks the free memory. `meminfo` is the text of /proc/meminfo.
fn check_memory(meminfo: Option<&str>) -> Option<MachineFinding> {
    let line = meminfo?
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    let free = kib.checked_mul(1024)?;
    let text = format!("{} available", bytes(free));
    Some(if free < MIN_FREE_BYTES {
        MachineFinding::limit(
            "memory",
            text,
            "thousands of connections and long logs of requests need more",
        )
    } else {
        MachineFinding::good("memory", text)
    })
}

/// Checks whether CPU profiles can be recorded. `paranoid` is the value of kernel.perf_event_paranoid.
fn check_profiles(paranoid: Option<&str>) -> Option<MachineFinding> {
    let value: i64 = paranoid?.parse().ok()?;
    let is_root = rustix::process::geteuid().is_root();
    Some(if value <= 1 || is_root {
        MachineFinding::good("profiles", "the kernel lets --profile sample".to_owned())
    } else {
        MachineFinding::limit(
            "profiles",
            format!(
                "kernel.perf_event_paranoid is {value}: --profile sees no kernel functions, or is refused"
            ),
            "sysctl kernel.perf_event_paranoid=1",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::FindingKind::{Distortion, Good, Limit};
    use super::*;

    #[test]
    fn settings_are_judged_by_value() {
        let kind = |finding: Option<MachineFinding>| finding.unwrap().kind;
        assert_eq!(check_cores(1).kind, Limit);
        assert_eq!(check_cores(2).kind, Good);
        assert_eq!(machine_core_count("cpu  1 2\ncpu0 1\ncpu1 1\nintr 5"), 2);
        assert_eq!(kind(check_load(Some("0.30 1 1 1/1 1"), 2)), Good);
        assert_eq!(kind(check_load(Some("0.90 1 1 1/1 1"), 2)), Distortion);
        assert_eq!(kind(check_governor(Some("powersave"))), Limit);
        assert_eq!(kind(check_governor(Some("performance"))), Good);
        assert_eq!(kind(check_clock(Some("hpet"))), Limit);
        assert_eq!(kind(check_clock(Some("kvm-clock"))), Good);
        assert_eq!(kind(check_ports(Some("32768\t60999"))), Good);
        assert_eq!(kind(check_ports(Some("50000 60999"))), Limit);
        assert_eq!(
            kind(check_memory(Some("MemTotal: 1 kB\nMemAvailable: 100 kB"))),
            Limit
        );
        assert_eq!(kind(check_memory(Some("MemAvailable: 9999999 kB"))), Good);
    }

    #[test]
    fn unreadable_settings_are_left_out() {
        assert_eq!(check_load(Some("?"), 2), None);
        assert_eq!(check_ports(Some("9 3")), None);
        assert_eq!(check_memory(Some("MemFree: 1 kB")), None);
        assert_eq!((check_governor(None), check_clock(None)), (None, None));
    }
}
