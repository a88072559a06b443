//! On what was measured: without it a figure means little.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// What a reader needs to judge the figures.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    /// Model of the processor.
    pub cpu: String,
    /// How many of its cores this process may use.
    pub cores: usize,
    /// Of memory.
    pub memory_gib: f64,
    /// Name and release of the system.
    pub kernel: String,
    /// The file system under the data folders.
    pub file_system: String,
}

impl Machine {
    /// This one, with data folders in `folder`.
    pub fn look(folder: &Path) -> Result<Machine> {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").context("/proc/cpuinfo")?;
        let meminfo = std::fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?;
        Ok(Machine {
            cpu: cpu_model(&cpuinfo).unwrap_or("unknown").to_string(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: memory_gib(&meminfo).context("/proc/meminfo names no MemTotal")?,
            kernel: said(Command::new("uname").arg("-sr"))?,
            file_system: file_system(&said(Command::new("df").arg("--output=fstype").arg(folder))?),
        })
    }

    /// In a line.
    pub fn shown(&self) -> String {
        let Machine { cpu, cores, memory_gib, kernel, file_system } = self;
        let cores = if *cores == 1 { "1 core".to_string() } else { format!("{cores} cores") };
        format!("{cores} of {cpu}, {memory_gib:.0} GiB, {kernel}, {file_system}")
    }
}

/// What a program prints, without the space around it.
pub fn said(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
}

/// The version in what `--version` prints: `7.0.15` of `Redis server v=7.0.15 sha=...`, `0.1.0` of `quipu 0.1.0`.
pub fn version_in(text: &str) -> Option<&str> {
    let marked = text.split_whitespace().find_map(|word| word.strip_prefix("v="));
    marked.or_else(|| {
        text.split_whitespace().find(|word| word.starts_with(|first: char| first.is_ascii_digit()))
    })
}

/// From a title and, below it, the type.
fn file_system(df: &str) -> String {
    df.lines().nth(1).unwrap_or("unknown").trim().to_string()
}

fn cpu_model(cpuinfo: &str) -> Option<&str> {
    cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.trim().strip_prefix(':')).map(str::trim)
}

fn memory_gib(meminfo: &str) -> Option<f64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_described_by_the_kernel() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz\nflags\t: a b\n";
        assert_eq!(cpu_model(cpuinfo), Some("Some CPU @ 2.0GHz"));
        assert_eq!(cpu_model("processor : 0\n"), None);
        assert_eq!(memory_gib("MemTotal:       2097152 kB\nMemFree: 1 kB\n"), Some(2.0));
        assert_eq!(file_system("Type\next4\n"), "ext4");
        assert_eq!(file_system("Type\n"), "unknown");
        let machine = Machine::look(Path::new("/")).unwrap();
        assert!(machine.cores >= 1 && machine.kernel.starts_with("Linux"), "{machine:?}");
    }

    #[test]
    fn versions_are_found_in_what_programs_say() {
        for (text, expected) in [
            ("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64", Some("7.0.15")),
            ("Valkey server v=8.0.1 sha=0", Some("8.0.1")),
            ("quipu 0.1.0", Some("0.1.0")),
            ("nothing", None),
        ] {
            assert_eq!(version_in(text), expected, "{text}");
        }
    }
}
