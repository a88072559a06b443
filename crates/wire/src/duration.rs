//! Durations as people write them.

/// Milliseconds: a whole number and a unit. A bare number would leave the unit to guessing.
pub fn duration_ms(text: &str) -> Result<u64, &'static str> {
    any_duration_ms(text).and_then(|ms| if ms > 0 { Ok(ms) } else { Err(DURATION) })
}

/// The same where no time at all means something too.
pub fn any_duration_ms(text: &str) -> Result<u64, &'static str> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| DURATION)?;
    let factor: u64 = match text[digits..].trim_start() {
        "ms" => 1,
        "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(DURATION),
    };
    number.checked_mul(factor).ok_or(DURATION)
}

/// What a duration looks like.
pub const DURATION: &str = "a duration like 500ms, 90s, 15m, 24h or 7d";

/// The same the other way: in the largest unit that says it exactly.
pub fn duration_text(ms: u64) -> String {
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    let exact = units.into_iter().find(|(factor, _)| ms > 0 && ms.is_multiple_of(*factor));
    exact.map_or_else(|| format!("{ms}ms"), |(factor, unit)| format!("{}{unit}", ms / factor))
}
