//! CONFIG: settings of Redis that clients and tools ask for, with the values that describe this server.

use std::sync::atomic::Ordering;

use quipu_wire::commands::Command;
use quipu_wire::glob::matches_ignoring_case;
use quipu_wire::number::parse_i64;
use quipu_wire::resp::{Arguments, Encoder, errors};

use super::Complaint;
use crate::resp::Shared;
use crate::resp::admission::KEEP_ALIVE;
use crate::resp::inbox::Message;

/// Parameters that Redis does not let anyone set, not even to what they are.
const IMMUTABLE: [&str; 3] = ["cluster-enabled", "databases", "io-threads"];

/// Answers a subcommand.
pub fn answer(
    shared: &Shared,
    command: Command,
    operands: Arguments<'_, '_>,
    encoder: &mut Encoder<'_>,
) -> Result<(), Complaint> {
    match command {
        Command::ConfigGet => {
            let parameters = parameters(shared);
            let found = wanted(&parameters, operands);
            encoder.map(found.len());
            for (name, value) in found {
                encoder.bulk(name);
                encoder.bulk(value.as_bytes());
            }
        }
        Command::ConfigSet => {
            set(shared, operands)?;
            encoder.ok();
        }
        Command::ConfigResetStat => {
            shared.reset_statistics();
            encoder.ok();
        }
        _ => return Err("ERR The server is running without a config file".into()),
    }
    Ok(())
}

/// The parameters asked for, each once; one that is asked for by its name is answered in the spelling it was asked in.
fn wanted<'p>(
    parameters: &'p [(&'static str, String)],
    patterns: Arguments<'_, 'p>,
) -> Vec<(&'p [u8], &'p String)> {
    let mut found: Vec<(&[u8], &String)> = Vec::new();
    for pattern in patterns.iter() {
        let is_name = !pattern.iter().any(|byte| b"[*?".contains(byte));
        for (name, value) in parameters {
            let name = name.as_bytes();
            let is_meant = match is_name {
                true => pattern.eq_ignore_ascii_case(name),
                false => matches_ignoring_case(pattern, name),
            };
            if is_meant && !found.iter().any(|(before, _)| before.eq_ignore_ascii_case(name)) {
                found.push((if is_name { pattern } else { name }, value));
            }
        }
    }
    found
}

/// All parameters, in the order of their names.
fn parameters(shared: &Shared) -> Vec<(&'static str, String)> {
    let options = &shared.options;
    let sync_policy = match options.durability.as_str() {
        "sync" => "always",
        "none" => "no",
        _ => "everysec",
    };
    vec![
        ("appendfsync", sync_policy.into()),
        ("appendonly", "yes".into()),
        ("bind", shared.address.ip().to_string()),
        ("client-query-buffer-limit", options.limits.frame_bytes.to_string()),
        ("cluster-enabled", "no".into()),
        ("databases", "1".into()),
        ("io-threads", shared.inboxes.len().to_string()),
        ("latency-monitor-threshold", "0".into()),
        ("maxclients", shared.connections_max.load(Ordering::Relaxed).to_string()),
        ("maxmemory", "0".into()),
        ("maxmemory-policy", "noeviction".into()),
        ("notify-keyspace-events", String::new()),
        ("port", shared.address.port().to_string()),
        ("proto-max-bulk-len", options.limits.argument_bytes.to_string()),
        ("save", String::new()),
        ("slowlog-log-slower-than", "-1".into()),
        ("slowlog-max-len", "0".into()),
        ("tcp-keepalive", KEEP_ALIVE.as_secs().to_string()),
        ("timeout", (shared.idle_ms.load(Ordering::Relaxed) / 1000).to_string()),
    ]
}

/// What CONFIG SET changes.
#[derive(Default)]
struct Changes {
    connections_max: Option<usize>,
    idle_s: Option<u64>,
}

/// All or none: every pair is checked before one is set. What cannot be changed may be set to what it is.
fn set(shared: &Shared, operands: Arguments<'_, '_>) -> Result<(), Complaint> {
    if !operands.len().is_multiple_of(2) {
        return Err(errors::SYNTAX.into());
    }
    let parameters = parameters(shared);
    let known = |word: &[u8]| parameters.iter().find(|(name, _)| word.eq_ignore_ascii_case(name.as_bytes()));
    let pairs = || operands.iter().step_by(2).zip(operands.iter().skip(1).step_by(2));
    if let Some((unknown, _)) = pairs().find(|(word, _)| known(word).is_none()) {
        let text = "ERR Unknown option or number of arguments for CONFIG SET - '";
        return Err(errors::quoting(text, unknown, "'").into());
    }
    let (mut changes, mut seen) = (Changes::default(), Vec::new());
    for (word, value) in pairs() {
        let Some((name, current)) = known(word) else { continue };
        if seen.contains(name) {
            return Err(failed(word, "duplicate parameter"));
        }
        seen.push(name);
        changes.read(name, word, value, current)?;
    }
    if let Some(number) = changes.connections_max {
        shared.connections_max.store(number, Ordering::Relaxed);
    }
    if let Some(seconds) = changes.idle_s {
        shared.idle_ms.store(seconds * 1000, Ordering::Relaxed);
        // They sleep for as long as nobody sends anything.
        shared.inboxes.iter().for_each(|inbox| inbox.push(Message::Look));
    }
    Ok(())
}

impl Changes {
    fn read(&mut self, name: &str, word: &[u8], value: &[u8], current: &str) -> Result<(), Complaint> {
        // Redis names what cannot be set as it was spelled, and what was set wrongly by its name.
        let failed_here = |why: &str| failed(name.as_bytes(), why);
        let number =
            || parse_i64(value).ok_or_else(|| failed_here("argument couldn't be parsed into an integer"));
        match name {
            "maxclients" => {
                let number = number()?;
                if !(1..=u32::MAX.into()).contains(&number) {
                    return Err(failed_here("argument must be between 1 and 4294967295 inclusive"));
                }
                self.connections_max = Some(number as usize);
            }
            "timeout" => {
                let number = number()?;
                if !(0..=i32::MAX.into()).contains(&number) {
                    return Err(failed_here("argument must be between 0 and 2147483647 inclusive"));
                }
                self.idle_s = Some(number as u64);
            }
            _ if IMMUTABLE.contains(&name) || value != current.as_bytes() => {
                return Err(failed(word, "can't set immutable config"));
            }
            _ => {}
        }
        Ok(())
    }
}

fn failed(name: &[u8], why: &str) -> Complaint {
    let text = "ERR CONFIG SET failed (possibly related to argument '";
    errors::quoting(text, name, &format!("') - {why}")).into()
}
