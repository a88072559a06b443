//! A counter that differs from the source, and a file that holds many of them: how many there are must not decide how much
//! memory it takes.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

/// What is the matter with a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It has another value.
    Drift,
    /// The source has it, quipu does not.
    Missing,
    /// Quipu has it, the source does not.
    Unlisted,
    /// It never rested long enough to be judged.
    Busy,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Drift, Kind::Missing, Kind::Unlisted, Kind::Busy];

    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Drift => "drift",
            Kind::Missing => "missing",
            Kind::Unlisted => "unlisted",
            Kind::Busy => "busy",
        }
    }
}

/// A counter, what it was, and what it should have been.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub key: Vec<u8>,
    pub kind: Kind,
    /// What the source says, if it has it.
    pub truth: Option<i64>,
    /// What it was; 0 where there is none.
    pub value: i64,
    /// How many changes it had by then; 0 where there is none.
    pub version: u64,
    /// When the last of them was.
    pub updated_at_ms: u64,
    /// The number of the mark that it was judged for.
    pub mark: u64,
    /// How often it was looked at.
    pub looks: u8,
    /// It differed by the same every time.
    pub is_steady: bool,
}

impl Finding {
    /// What is missing in the counter.
    pub fn drift(&self) -> i128 {
        i128::from(self.truth.unwrap_or(0)) - i128::from(self.value)
    }

    /// As a row of a report.
    pub fn to_json(&self) -> Map<String, Value> {
        let mut row = Map::new();
        row.insert("finding".into(), json!(self.kind.name()));
        match std::str::from_utf8(&self.key) {
            Ok(key) => row.insert("counterKey".into(), json!(key)),
            Err(_) => row.insert("keyBase64".into(), json!(STANDARD.encode(&self.key))),
        };
        row.insert("truth".into(), json!(self.truth));
        row.insert("value".into(), json!(self.value));
        let drift = self.drift();
        // Only from one end of the range to the other is it more than a JSON number should be.
        row.insert("drift".into(), i64::try_from(drift).map_or(json!(drift.to_string()), Value::from));
        row.insert("version".into(), json!(self.version));
        let changed = i64::try_from(self.updated_at_ms).ok().filter(|ms| *ms > 0);
        let changed = changed.and_then(|ms| Timestamp::from_millisecond(ms).ok());
        row.insert("updatedAt".into(), json!(changed.map(|at| at.to_string())));
        if self.kind == Kind::Busy {
            row.insert("steady".into(), json!(self.is_steady));
            row.insert("rounds".into(), json!(self.looks));
        }
        row
    }
}

/// Numbers in front of each key in a spool.
const HEAD_BYTES: usize = 4 + 5 * 8 + 2;

/// Findings on disk, in a file without a name that goes with the process.
pub struct Spool {
    file: BufWriter<File>,
    pub count: u64,
}

impl Spool {
    pub fn new() -> std::io::Result<Spool> {
        Ok(Spool { file: BufWriter::new(tempfile::tempfile()?), count: 0 })
    }

    pub fn push(&mut self, finding: &Finding) -> std::io::Result<()> {
        let kind = Kind::ALL.iter().position(|kind| *kind == finding.kind).unwrap_or(0) as u8;
        let flags = [kind, finding.looks, finding.is_steady.into(), finding.truth.is_some().into()];
        self.file.write_all(&flags)?;
        for number in [finding.truth.unwrap_or(0), finding.value] {
            self.file.write_all(&number.to_le_bytes())?;
        }
        for number in [finding.version, finding.updated_at_ms, finding.mark] {
            self.file.write_all(&number.to_le_bytes())?;
        }
        self.file.write_all(&(finding.key.len() as u16).to_le_bytes())?;
        self.file.write_all(&finding.key)?;
        self.count += 1;
        Ok(())
    }

    /// What was put into it, from the first on.
    pub fn read(self) -> std::io::Result<Spooled> {
        let mut file = self.file.into_inner().map_err(std::io::IntoInnerError::into_error)?;
        file.rewind()?;
        Ok(Spooled { file: BufReader::new(file), left: self.count })
    }
}

/// See [`Spool::read`].
pub struct Spooled {
    file: BufReader<File>,
    left: u64,
}

impl Spooled {
    /// The next ones; none behind the last.
    pub fn next(&mut self, count: usize) -> std::io::Result<Vec<Finding>> {
        let count = self.left.min(count as u64);
        self.left -= count;
        (0..count).map(|_| self.read()).collect()
    }

    fn read(&mut self) -> std::io::Result<Finding> {
        let mut head = [0; HEAD_BYTES];
        self.file.read_exact(&mut head)?;
        let word = |place: usize| -> [u8; 8] {
            let start = 4 + place * 8;
            std::array::from_fn(|index| head[start + index])
        };
        let mut key = vec![0; usize::from(u16::from_le_bytes([head[HEAD_BYTES - 2], head[HEAD_BYTES - 1]]))];
        self.file.read_exact(&mut key)?;
        Ok(Finding {
            key,
            kind: Kind::ALL[usize::from(head[0]) % Kind::ALL.len()],
            truth: (head[3] != 0).then(|| i64::from_le_bytes(word(0))),
            value: i64::from_le_bytes(word(1)),
            version: u64::from_le_bytes(word(2)),
            updated_at_ms: u64::from_le_bytes(word(3)),
            mark: u64::from_le_bytes(word(4)),
            looks: head[1],
            is_steady: head[2] != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_aside_comes_back() {
        let findings: Vec<Finding> = (0..1000u16)
            .map(|number| Finding {
                key: vec![number as u8; usize::from(number % 512 + 1)],
                kind: Kind::ALL[usize::from(number % 4)],
                truth: (number % 3 > 0).then(|| i64::MIN + i64::from(number)),
                value: i64::MAX - i64::from(number),
                version: u64::from(number) << 40,
                updated_at_ms: u64::MAX - u64::from(number),
                mark: u64::from(number) << 20,
                looks: number as u8,
                is_steady: number % 2 == 0,
            })
            .collect();
        let mut spool = Spool::new().unwrap();
        findings.iter().for_each(|finding| spool.push(finding).unwrap());
        let mut spooled = spool.read().unwrap();
        let mut found = Vec::new();
        while let Some(more) = Some(spooled.next(7).unwrap()).filter(|more| !more.is_empty()) {
            found.extend(more);
        }
        assert_eq!(found, findings);
    }

    #[test]
    fn findings_as_json() {
        let finding = Finding {
            key: b"likes:7".to_vec(),
            kind: Kind::Drift,
            truth: Some(i64::MAX),
            value: -1,
            version: 3,
            updated_at_ms: 1_771_834_530_250,
            mark: 77,
            looks: 1,
            is_steady: false,
        };
        assert_eq!(
            Value::Object(finding.to_json()).to_string(),
            r#"{"finding":"drift","counterKey":"likes:7","truth":9223372036854775807,"value":-1,"drift":"9223372036854775808","version":3,"updatedAt":"2026-02-23T08:15:30.25Z"}"#
        );
        let busy =
            Finding { key: vec![0xff], kind: Kind::Busy, truth: None, value: 5, updated_at_ms: 0, ..finding };
        assert_eq!(
            Value::Object(busy.to_json()).to_string(),
            r#"{"finding":"busy","keyBase64":"/w==","truth":null,"value":5,"drift":-5,"version":3,"updatedAt":null,"steady":false,"rounds":1}"#
        );
    }
}
