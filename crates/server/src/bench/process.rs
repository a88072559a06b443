//! What the kernel says about a process: its CPU time and its memory, from `/proc`.

use std::fs;

use anyhow::{Context, Result};

/// `/proc/<pid>/stat` counts in ticks of 10 ms. USER_HZ has been 100 in every Linux ABI that matters, and asking
/// `sysconf` would take `unsafe`.
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU seconds a process has used so far, in user and in kernel, all its threads together. Children are left out:
/// a child that rewrites a file in the background would flatter its parent, which is what others measure too.
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path)
        .with_context(|| format!("cannot read {path}: is the server on this machine?"))?;
    parse_cpu_seconds(&stat).with_context(|| format!("{path} is not in the expected form"))
}

/// Bytes of a process that are in memory now.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    parse_resident_bytes(&status).with_context(|| format!("{path} has no VmRSS line"))
}

fn parse_cpu_seconds(stat: &str) -> Option<f64> {
    // The second field is the name in parentheses and may hold anything, so fields count from its end: the state
    // is field 3, utime 14 and stime 15.
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace().skip(14 - 3);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((user + system) as f64 / TICKS_PER_SECOND)
}

fn parse_resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_may_hold_anything() {
        let stat = "77 (a) b (c)) S 1 77 77 0 -1 4194304 1 2 3 4 150 25 6 7 20 0 4 0 99 1000 200";
        assert_eq!(parse_cpu_seconds(stat), Some(1.75));
        assert_eq!(parse_cpu_seconds("77 (cut off) S 1"), None);
    }

    #[test]
    fn resident_memory_is_in_kibibytes() {
        assert_eq!(
            parse_resident_bytes("VmPeak:\t 9 kB\nVmRSS:\t  2048 kB\nRssAnon: 1 kB\n"),
            Some(2048 * 1024)
        );
        assert_eq!(parse_resident_bytes("Name:\tkthreadd\n"), None);
    }

    #[test]
    fn this_process_can_be_measured() {
        let pid = std::process::id();
        assert!(cpu_seconds(pid).unwrap() >= 0.0);
        assert!(resident_bytes(pid).unwrap() > 100_000);
    }
}
