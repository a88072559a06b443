//! CONFIG: settings of Redis that clients and tools ask for, with the values that describe this server.

use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;

use quipu_wire::commands::Command;
use quipu_wire::glob::matches_ignoring_case;
use quipu_wire::number::parse_i64;
use quipu_wire::resp::{Arguments, Encoder, errors};

use super::Complaint;
use crate::resp::Shared;
use crate::resp::admission::KEEP_ALIVE;
use crate::resp::inbox::Message;
use crate::resp::session::Card;

/// What maxclients may be, as in Redis.
const CONNECTIONS_ALLOWED: RangeInclusive<u32> = 1..=u32::MAX;
/// What timeout may be, as in Redis.
const IDLE_S_ALLOWED: RangeInclusive<u32> = 0..=i32::MAX as u32;
/// Parameters that Redis does not let anyone set, not even to what they are.
const IMMUTABLE: [&str; 3] = ["cluster-enabled", "databases", "io-threads"];
const CANNOT_BE_SET: &str = "can't set immutable config";

/// Answers a subcommand.
pub fn answer(
    shared: &Shared,
    card: &Card,
    command: Command,
    operands: Arguments<'_, '_>,
    encoder: &mut Encoder<'_>,
) -> Result<(), Complaint> {
    match command {
        Command::ConfigGet => {
            let parameters = parameters(shared, card);
            let found = asked(&parameters, operands);
            encoder.map(found.len());
            for (name, value) in found {
                encoder.bulk(name);
                encoder.bulk(value.as_bytes());
            }
        }
        Command::ConfigSet => {
            set(shared, card, operands)?;
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

/// The parameters that any of the patterns asks for, each once. A name that is no pattern is answered as it was spelled.
fn asked<'p>(
    parameters: &'p [(&'static str, String)],
    patterns: Arguments<'_, 'p>,
) -> Vec<(&'p [u8], &'p String)> {
    let mut found: Vec<(&[u8], &String)> = Vec::new();
    for pattern in patterns.iter() {
        let is_pattern = pattern.iter().any(|byte| b"[*?".contains(byte));
        for (name, value) in parameters {
            let name = name.as_bytes();
            let is_meant = if is_pattern {
                matches_ignoring_case(pattern, name)
            } else {
                pattern.eq_ignore_ascii_case(name)
            };
            if is_meant && !found.iter().any(|(known, _)| known.eq_ignore_ascii_case(name)) {
                found.push((if is_pattern { name } else { pattern }, value));
            }
        }
    }
    found
}

/// All parameters, in the order of their names.
fn parameters(shared: &Shared, card: &Card) -> Vec<(&'static str, String)> {
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
        ("cluster-enabled", if card.is_of_cluster { "yes" } else { "no" }.into()),
        ("databases", "1".into()),
        ("io-threads", shared.inboxes.len().to_string()),
        ("latency-monitor-threshold", "0".into()),
        ("maxclients", shared.connections_max.load(Ordering::Relaxed).to_string()),
        ("maxmemory", "0".into()),
        ("maxmemory-policy", "noeviction".into()),
        ("notify-keyspace-events", String::new()),
        ("port", card.local.port().to_string()),
        ("proto-max-bulk-len", options.limits.argument_bytes.to_string()),
        ("save", String::new()),
        ("slowlog-log-slower-than", "-1".into()),
        ("slowlog-max-len", "0".into()),
        ("tcp-keepalive", KEEP_ALIVE.as_secs().to_string()),
        ("timeout", (shared.idle_ms.load(Ordering::Relaxed) / 1000).to_string()),
    ]
}

/// All or none: every pair is checked before one is set, first the names and then the values, as in Redis. What cannot be
/// changed may be set to what it is.
fn set(shared: &Shared, card: &Card, operands: Arguments<'_, '_>) -> Result<(), Complaint> {
    if !operands.len().is_multiple_of(2) {
        return Err(errors::SYNTAX.into());
    }
    let parameters = parameters(shared, card);
    let mut pairs = Vec::<(&(_, String), &[u8], &[u8])>::new();
    for (word, value) in operands.iter().step_by(2).zip(operands.iter().skip(1).step_by(2)) {
        let found = parameters.iter().find(|(name, _)| word.eq_ignore_ascii_case(name.as_bytes()));
        let Some(parameter) = found else {
            let unknown = "ERR Unknown option or number of arguments for CONFIG SET - '";
            return Err(errors::quoting(unknown, word, "'").into());
        };
        if IMMUTABLE.contains(&parameter.0) {
            return Err(failed(word, CANNOT_BE_SET));
        }
        if pairs.iter().any(|(before, ..)| before.0 == parameter.0) {
            return Err(failed(word, "duplicate parameter"));
        }
        pairs.push((parameter, word, value));
    }
    let (mut connections_max, mut idle_s) = (None, None);
    for ((name, current), word, value) in pairs {
        match *name {
            "maxclients" => connections_max = Some(connections(shared, name, value)?),
            "timeout" => idle_s = Some(number(name, value, IDLE_S_ALLOWED)?),
            _ if value != current.as_bytes() => return Err(failed(word, CANNOT_BE_SET)),
            _ => {}
        }
    }
    if let Some(number) = connections_max {
        shared.connections_max.store(number, Ordering::Relaxed);
    }
    if let Some(seconds) = idle_s {
        shared.idle_ms.store(seconds * 1000, Ordering::Relaxed);
        // They sleep for as long as nobody sends anything.
        shared.inboxes.iter().for_each(|inbox| inbox.push(Message::Look));
    }
    Ok(())
}

/// Redis names what cannot be set as it was spelled, and what was set wrongly by its name.
fn failed(name: &[u8], why: &str) -> Complaint {
    let failed = "ERR CONFIG SET failed (possibly related to argument '";
    errors::quoting(failed, name, &format!("') - {why}")).into()
}

fn connections(shared: &Shared, name: &str, text: &[u8]) -> Result<usize, Complaint> {
    let number = number(name, text, CONNECTIONS_ALLOWED)? as usize;
    let possible = shared.options.connections_possible;
    if number <= possible {
        return Ok(number);
    }
    let why = "The operating system is not able to handle the specified number of clients, try with";
    Err(failed(name.as_bytes(), &format!("{why} {possible}")))
}

fn number(name: &str, text: &[u8], allowed: RangeInclusive<u32>) -> Result<u64, Complaint> {
    let failed = |why: &str| failed(name.as_bytes(), why);
    let number = parse_i64(text).ok_or_else(|| failed("argument couldn't be parsed into an integer"))?;
    let number = u32::try_from(number).ok().filter(|number| allowed.contains(number));
    let (least, most) = allowed.into_inner();
    let outside = || failed(&format!("argument must be between {least} and {most} inclusive"));
    number.map(u64::from).ok_or_else(outside)
}
