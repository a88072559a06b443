//! The configuration file: TOML, read strictly, every setting with the line it stands on.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context, anyhow};
use toml::de::{DeTable, DeValue};

use super::{Setting, nearest, settings};

/// A setting as the file gives it.
#[derive(Debug, PartialEq, Eq)]
pub struct FromFile {
    /// Its name, as in [`settings`].
    pub name: &'static str,
    /// Its value.
    pub text: String,
    /// Where it stands, counted from 1.
    pub line: usize,
}

/// Reads a file.
pub fn read(path: &Path) -> anyhow::Result<Vec<FromFile>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).map_err(|(line, problem)| anyhow!("{}:{line}: {problem}", path.display()))
}

/// The settings in a file, or what is wrong on which line.
pub fn parse(text: &str) -> Result<Vec<FromFile>, (usize, String)> {
    let root = DeTable::parse(text).map_err(|error| {
        // The library's message may span lines, to point at the place; we name the line.
        let words: Vec<&str> = error.message().split_whitespace().collect();
        (error.span().map_or(1, |span| line_of(text, span)), words.join(" "))
    })?;
    let mut found = Vec::new();
    let mut take = |name: &str, place: Range<usize>, value: &DeValue<'_>| {
        let line = line_of(text, place);
        found.push(setting(name, value, line).map_err(|problem| (line, problem))?);
        Ok(())
    };
    for (name, value) in root.get_ref() {
        match value.get_ref() {
            DeValue::Table(table) => {
                for (inner, value) in table {
                    take(&format!("{}.{}", name.get_ref(), inner.get_ref()), inner.span(), value.get_ref())?;
                }
            }
            value => take(name.get_ref(), name.span(), value)?,
        }
    }
    Ok(found)
}

fn line_of(text: &str, place: Range<usize>) -> usize {
    let before = text.as_bytes().get(..place.start).unwrap_or(text.as_bytes());
    before.iter().filter(|byte| **byte == b'\n').count() + 1
}

fn setting(name: &str, value: &DeValue<'_>, line: usize) -> Result<FromFile, String> {
    let Some(setting) = settings().find(|setting| setting.name == name) else {
        return Err(unknown(name));
    };
    let text = match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => number.to_string(),
            Err(_) => return Err(format!("{name}: {} is too large a number", number.as_str())),
        },
        DeValue::Boolean(flag) => flag.to_string(),
        _ => return Err(format!("{name}: a string, a number, true or false is expected")),
    };
    Ok(FromFile { name: setting.name, text, line })
}

fn unknown(name: &str) -> String {
    match nearest(name, |setting| [setting.name, setting.flag]) {
        Some(Setting { name: near, .. }) => format!("{name}: there is no such setting; did you mean {near}?"),
        None => {
            let known: Vec<&str> = settings().map(|setting| setting.name).collect();
            format!("{name}: there is no such setting; there are {}", known.join(", "))
        }
    }
}
