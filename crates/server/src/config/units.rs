//! Sizes (`512MiB`), durations (`24h`) and folders as people write them.

use std::path::PathBuf;

/// A size in bytes: a whole number and a unit, or bytes alone.
pub fn size(text: &str) -> Result<u64, &'static str> {
    let (number, unit) = split(text).ok_or(SIZE)?;
    let factor: u64 = match unit {
        "" | "B" => 1,
        "KiB" | "K" | "k" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        "TiB" | "T" => 1 << 40,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return Err(SIZE),
    };
    number.checked_mul(factor).filter(|bytes| *bytes > 0).ok_or(SIZE)
}

const SIZE: &str = "a size like 512MiB or 2GB";

pub use quipu_wire::duration::duration_ms;

/// A path that names something.
pub fn folder(text: &str) -> Result<PathBuf, &'static str> {
    if text.is_empty() { Err("a folder") } else { Ok(PathBuf::from(text)) }
}

fn split(text: &str) -> Option<(u64, &str)> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..digits].parse().ok()?, text[digits..].trim_start()))
}

#[cfg(test)]
mod tests {
    use super::{duration_ms, size};

    #[test]
    fn sizes() {
        for (text, expected) in [
            ("512MiB", Some(512 << 20)),
            ("1GiB", Some(1 << 30)),
            ("2 GB", Some(2_000_000_000)),
            ("4096", Some(4096)),
            ("0", None),
            ("", None),
            ("MiB", None),
            ("-1MiB", None),
            ("1.5GiB", None),
            ("1XiB", None),
            ("99999999999TiB", None),
        ] {
            assert_eq!(size(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn durations() {
        for (text, expected) in [
            ("24h", Some(86_400_000)),
            ("500ms", Some(500)),
            ("90s", Some(90_000)),
            ("15m", Some(900_000)),
            ("7d", Some(604_800_000)),
            ("24", None),
            ("0s", None),
            ("h", None),
            ("1y", None),
        ] {
            assert_eq!(duration_ms(text).ok(), expected, "{text}");
        }
    }
}
