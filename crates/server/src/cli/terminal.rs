//! How things look: numbers, times, keys and tables for a person on a terminal, plain ones for a program behind a pipe.

use std::fmt;
use std::io::{IsTerminal, Write};

use anstream::{AutoStream, ColorChoice};
use clap::builder::styling::{AnsiColor, Style};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use indicatif::{HumanBytes, HumanCount};
use jiff::SignedDuration;

use super::failure::{Failure, system_words};

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const ERROR: Style = AnsiColor::Red.on_default().bold();
const NOTE: Style = AnsiColor::Yellow.on_default().bold();

/// Blanks between the columns of a table.
const COLUMN_GAP: u16 = 2;

/// A stream that a person or a program reads.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    /// A person: numbers get separators, results get tables.
    pub is_terminal: bool,
    /// Colours are welcome.
    colour: bool,
}

impl Screen {
    /// What stdout is.
    pub fn stdout() -> Screen {
        let stdout = std::io::stdout();
        Screen {
            is_terminal: stdout.is_terminal(),
            colour: AutoStream::choice(&stdout) != ColorChoice::Never,
        }
    }

    /// What stderr is.
    pub fn stderr() -> Screen {
        let stderr = std::io::stderr();
        Screen {
            is_terminal: stderr.is_terminal(),
            colour: AutoStream::choice(&stderr) != ColorChoice::Never,
        }
    }

    /// `1,234,567` for a person, `1234567` for a program.
    pub fn number(&self, number: impl Into<i128>) -> String {
        let number = number.into();
        if self.is_terminal { grouped(number) } else { number.to_string() }
    }

    /// Of lesser interest than what stands beside it.
    pub fn dim(&self, text: &str) -> String {
        self.paint(DIM, text)
    }

    fn paint(&self, style: Style, text: &str) -> String {
        if self.colour { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }

    /// Aligned columns under a header, a line each, without a line end at the end. A heading that ends in a blank
    /// stands over numbers, which are aligned at their last digit.
    pub fn table(&self, header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(header.iter().map(|name| name.trim_end())).add_rows(rows);
        for (name, column) in header.iter().zip(table.column_iter_mut()) {
            column.set_padding((0, COLUMN_GAP));
            if name.ends_with(' ') {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let mut lines = table.lines().map(|line| line.trim_end().to_owned());
        let first = self.paint(BOLD, &lines.next().unwrap_or_default());
        std::iter::once(first).chain(lines).collect::<Vec<_>>().join("\n")
    }
}

/// Writes a line to stdout: the result of a command. A command whose result cannot be written has failed.
pub fn print(text: impl fmt::Display) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{text}").and_then(|()| stdout.flush()).map_err(|error| unprintable(&error))
}

/// Nobody got the result.
pub fn unprintable(error: &std::io::Error) -> Failure {
    Failure::general(format!("cannot write to stdout: {}", system_words(error)))
}

/// Says something on stderr beside the result. Nobody is left to be told where stderr is closed.
pub fn print_aside(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Says on stderr why a command failed.
pub fn print_error(message: &str) {
    print_labelled(ERROR, "error:", message);
}

/// Says something on stderr that a person should know, and that is no failure.
pub fn print_note(message: &str) {
    print_labelled(NOTE, "note:", message);
}

fn print_labelled(style: Style, label: &str, message: &str) {
    let label = Screen::stderr().paint(style, label);
    print_aside(&format!("{label} {message}"));
}

/// `1,234,567`
pub fn grouped(number: i128) -> String {
    let sign = if number < 0 { "-" } else { "" };
    match u64::try_from(number.unsigned_abs()) {
        Ok(size) => format!("{sign}{}", HumanCount(size)),
        // Only sums of many counters are larger than 64 bits.
        Err(_) => number.to_string(),
    }
}

/// `12.40 MiB`
pub fn bytes(bytes: u64) -> String {
    HumanBytes(bytes).to_string()
}

/// `3m 20s`: the two largest units, because nobody needs the milliseconds of a day.
pub fn duration(ms: u64) -> String {
    if let 1_000..60_000 = ms {
        return format!("{}.{}s", ms / 1_000, ms / 100 % 10);
    }
    let smallest_unit_ms = match ms {
        0..1_000 => 1,
        1_000..3_600_000 => 1_000,
        3_600_000..86_400_000 => 60_000,
        _ => 3_600_000,
    };
    let ms = i64::try_from(ms).unwrap_or(i64::MAX);
    let span = SignedDuration::from_millis(ms / smallest_unit_ms * smallest_unit_ms);
    let days = span.as_hours() / 24;
    let rest = span - SignedDuration::from_hours(days * 24);
    match (days, rest.is_zero()) {
        (0, _) => format!("{rest:#}"),
        (days, true) => format!("{days}d"),
        (days, false) => format!("{days}d {rest:#}"),
    }
}

/// A key on one line of text: bytes that would move the cursor, end the line or are no text are shown as escapes.
/// Where every byte matters there is `--json`.
pub fn key(key: &[u8]) -> String {
    let mut shown = String::with_capacity(key.len());
    for chunk in key.utf8_chunks() {
        for letter in chunk.valid().chars() {
            if letter.is_control() {
                shown.extend(letter.escape_default());
            } else {
                shown.push(letter);
            }
        }
        for byte in chunk.invalid() {
            shown.push_str(&format!("\\x{byte:02x}"));
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::{Screen, duration, grouped, key};

    const PERSON: Screen = Screen { is_terminal: true, colour: false };

    #[test]
    fn numbers() {
        for (number, shown) in [
            (0, "0"),
            (999, "999"),
            (-1_000, "-1,000"),
            (1_234_567, "1,234,567"),
            (i64::MIN.into(), "-9,223,372,036,854,775,808"),
            (1i128 << 70, "1180591620717411303424"),
        ] {
            assert_eq!(grouped(number), shown);
        }
        assert_eq!(Screen { is_terminal: false, ..PERSON }.number(1_234_567), "1234567");
    }

    #[test]
    fn durations() {
        for (ms, shown) in [
            (0, "0s"),
            (250, "250ms"),
            (1_999, "1.9s"),
            (59_999, "59.9s"),
            (200_000, "3m 20s"),
            (3_600_000, "1h"),
            (3_725_000, "1h 2m"),
            (86_400_000, "1d"),
            (90_061_000, "1d 1h"),
            (u64::MAX, "106751991167d 7h"),
        ] {
            assert_eq!(duration(ms), shown, "{ms}");
        }
    }

    #[test]
    fn keys_cannot_draw() {
        for (bytes, shown) in [
            (&b"likes:post:7"[..], "likes:post:7"),
            ("größe 数".as_bytes(), "größe 数"),
            (b"a\nb\tc", "a\\nb\\tc"),
            (b"\x1b[2J", "\\u{1b}[2J"),
            (b"\xff\x00k", "\\xff\\u{0}k"),
            ("\u{9b}2J".as_bytes(), "\\u{9b}2J"),
        ] {
            assert_eq!(key(bytes), shown);
        }
    }

    #[test]
    fn tables() {
        let rows = [vec!["a".to_owned(), "1".to_owned()], vec!["数".to_owned(), "1,000".to_owned()]];
        assert_eq!(PERSON.table(&["KEY", "VALUE "], rows), "KEY  VALUE\na        1\n数   1,000");
        let coloured = Screen { colour: true, ..PERSON };
        assert_eq!(coloured.table(&["KEY"], []), "\u{1b}[1mKEY\u{1b}[0m");
    }
}
