//! Durations as people write them.

/// Milliseconds: a whole number and a unit. A bare number would leave the unit to guessing.
pub fn duration_ms(text: &str) -> Result<u64, &'static str> {
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
    number.checked_mul(factor).filter(|ms| *ms > 0).ok_or(DURATION)
}

/// What a duration looks like.
pub const DURATION: &str = "a duration like 500ms, 90s, 15m, 24h or 7d";
