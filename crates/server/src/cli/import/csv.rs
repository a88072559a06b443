//! CSV under a header, in buffers of a fixed size: one missing quote must not read a whole file into memory.

use std::io::{self, BufRead};

use csv_core::{ReadRecordResult, Reader};

use super::rows::{BadRow, Fields, PASSED_OVER, ROW_BYTES_MAX, Row, expires_at};

/// The most columns of a row; more than anybody has beside a few counters.
const COLUMNS_MAX: usize = 256;

/// A column that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Key,
    KeyBase64,
    Value,
    TtlMs,
    ExpiresAt,
    PassedOver,
}

/// The rows of a CSV file.
pub struct CsvRows {
    input: Box<dyn BufRead>,
    parser: Reader,
    /// The fields of the row behind each other, unescaped.
    fields: Vec<u8>,
    /// Where each of them ends.
    ends: Vec<usize>,
    columns: Vec<Column>,
    /// Where the row begins.
    line: u64,
    /// Where the next one begins, blank lines apart.
    next_line: u64,
}

impl CsvRows {
    /// Reads the header.
    pub fn new(input: Box<dyn BufRead>) -> io::Result<Result<CsvRows, BadRow>> {
        let mut rows = CsvRows {
            input,
            parser: Reader::new(),
            fields: vec![0; ROW_BYTES_MAX],
            ends: vec![0; COLUMNS_MAX],
            columns: Vec::new(),
            line: 1,
            next_line: 1,
        };
        let header = match rows.read_record()? {
            None => Err("the file is empty".to_owned()),
            Some(Err(reason)) => Err(reason),
            Some(Ok(count)) => columns(&(0..count).map(|index| rows.field(index)).collect::<Vec<_>>()),
        };
        Ok(match header {
            Ok(columns) => Ok(CsvRows { columns, ..rows }),
            Err(reason) => Err(BadRow { line: rows.line, reason }),
        })
    }

    /// Where the row that was read last begins.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Puts the next one into `row`.
    pub fn next(&mut self, row: &mut Row) -> io::Result<Option<Result<(), String>>> {
        Ok(self.read_record()?.map(|record| self.convert(record?, row)))
    }

    fn convert(&self, count: usize, row: &mut Row) -> Result<(), String> {
        if count != self.columns.len() {
            return Err(format!("{count} fields, where the header names {}", self.columns.len()));
        }
        let mut fields = Fields::default();
        let mut value = None;
        for (index, column) in self.columns.iter().enumerate() {
            let field = self.field(index);
            // An empty field is one that is not given.
            if field.is_empty() {
                continue;
            }
            match column {
                Column::Key => fields.key = Some(field),
                Column::KeyBase64 => fields.key_base64 = Some(field),
                Column::Value => value = Some(number::<i64>("value", field)?),
                Column::TtlMs => fields.ttl_ms = Some(number::<u64>("ttlMs", field)?),
                Column::ExpiresAt => {
                    fields.expires_at_ms = Some(expires_at(&String::from_utf8_lossy(field))?)
                }
                Column::PassedOver => {}
            }
        }
        fields.fill(row, value.ok_or("the value is missing")?)
    }

    fn field(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.fields[start..self.ends[index]]
    }

    /// The number of fields of the next record, or why it is none.
    fn read_record(&mut self) -> io::Result<Option<Result<usize, String>>> {
        self.skip_line_ends()?;
        self.line = self.next_line;
        let (mut length, mut count, mut too_long) = (0, 0, false);
        loop {
            let input = self.input.fill_buf()?;
            let (result, read, written, ended) =
                self.parser.read_record(input, &mut self.fields[length..], &mut self.ends[count..]);
            self.next_line += memchr::memchr_iter(b'\n', &input[..read]).count() as u64;
            self.input.consume(read);
            (length, count) = (length + written, count + ended);
            match result {
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull | ReadRecordResult::OutputEndsFull => {
                    (length, count, too_long) = (0, 0, true);
                }
                ReadRecordResult::Record if too_long => {
                    let reason = format!(
                        "longer than {ROW_BYTES_MAX} bytes or {COLUMNS_MAX} fields; is a quote or a line end missing?"
                    );
                    return Ok(Some(Err(reason)));
                }
                ReadRecordResult::Record => return Ok(Some(Ok(count))),
                ReadRecordResult::End => return Ok(None),
            }
        }
    }

    /// The parser would pass over blank lines too, but not tell how many.
    fn skip_line_ends(&mut self) -> io::Result<()> {
        loop {
            let input = self.input.fill_buf()?;
            let ends = input.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
            self.next_line += memchr::memchr_iter(b'\n', &input[..ends]).count() as u64;
            self.input.consume(ends);
            if ends == 0 {
                return Ok(());
            }
        }
    }
}

fn number<T: std::str::FromStr>(column: &str, field: &[u8]) -> Result<T, String> {
    let text = std::str::from_utf8(field).ok().map(str::trim);
    text.and_then(|text| text.parse().ok()).ok_or_else(|| {
        format!("{column}: {:?} is not a whole number in range", String::from_utf8_lossy(field))
    })
}

/// The columns that the names of a header mean.
fn columns(names: &[&[u8]]) -> Result<Vec<Column>, String> {
    let shown = || names.iter().map(|name| String::from_utf8_lossy(name)).collect::<Vec<_>>().join(",");
    let expected =
        "the first line names the columns: key,value and perhaps ttlMs or expiresAt (or keyBase64 for key)";
    let mut found = Vec::new();
    for name in names {
        let column = column(&String::from_utf8_lossy(name))
            .ok_or_else(|| format!("{expected}; there is no column {:?}", String::from_utf8_lossy(name)))?;
        if column != Column::PassedOver && found.contains(&column) {
            return Err(format!("{expected}; two columns of {:?} mean the same", shown()));
        }
        found.push(column);
    }
    let has_key = found.contains(&Column::Key) || found.contains(&Column::KeyBase64);
    if has_key && found.contains(&Column::Value) {
        Ok(found)
    } else {
        Err(format!("{expected}; found {:?}", shown()))
    }
}

/// People write `ttl_ms` and `TTL ms` too.
fn column(name: &str) -> Option<Column> {
    let plain = |name: &str| name.replace(['_', '-', ' '], "").to_ascii_lowercase();
    match plain(name).as_str() {
        "key" | "counterkey" => Some(Column::Key),
        "keybase64" => Some(Column::KeyBase64),
        "value" => Some(Column::Value),
        "ttlms" => Some(Column::TtlMs),
        "expiresat" => Some(Column::ExpiresAt),
        other => PASSED_OVER.iter().any(|known| plain(known) == other).then_some(Column::PassedOver),
    }
}
