//! A query of PostgreSQL as a source of truth: which value each counter should have.
//!
//! Everything is read in one transaction that only reads and sees one moment ([`Source::look`]), so all rows are as of the
//! same point, however long reading them takes. Rows come in the order of their keys: that is how two rows for one
//! counter are noticed without remembering all of them.

use std::collections::HashMap;

use quipu_counting::KEY_BYTES_MAX;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Column, Config, NoTls, Row};

use crate::archive::postgres_says;

/// What a counter should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Truth {
    /// The counter.
    pub key: Vec<u8>,
    /// Its value.
    pub value: i64,
}

/// Why the source cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// PostgreSQL cannot be reached, or does not like the query.
    #[error("{}", postgres_says(.0))]
    Postgres(#[from] tokio_postgres::Error),
    /// The address or the query is not what is needed.
    #[error("{0}")]
    Unfit(String),
    /// A row is not what is needed.
    #[error("row {number} of the query, in the order of keys: {reason}")]
    Row {
        /// Counted from 1.
        number: u64,
        /// What is wrong, and what was expected.
        reason: String,
    },
}

/// A query, and a connection to ask it over.
pub struct Source {
    client: Client,
    /// All rows, in the order of keys.
    all: String,
    /// Those of some keys.
    some: String,
    /// Whether keys are bytes; otherwise they are text.
    has_bytes: bool,
    /// Rows that were read since the last look.
    number: u64,
    last_key: Option<Vec<u8>>,
}

impl Source {
    /// Connects, and sees that the query gives keys and values.
    pub async fn open(url: &str, query: &str) -> Result<Source, SourceError> {
        let config: Config = url.parse()?;
        let (client, connection) = config.connect(NoTls).await?;
        tokio::spawn(async move {
            // Whoever asks next hears that it ended.
            let _ = connection.await;
        });
        let inner = format!("(\n{}\n) AS quipu_source", query.trim().trim_end_matches(';'));
        let columns = client.prepare(&format!("SELECT * FROM {inner}")).await?;
        let names: Vec<&str> = columns.columns().iter().map(Column::name).collect();
        let (key, value) = key_and_value(&names).map_err(SourceError::Unfit)?;
        let key_type = columns.columns()[key].type_();
        let has_bytes = *key_type == Type::BYTEA;
        // By place: two columns may have the same name.
        let renamed: Vec<String> = (0..names.len()).map(|place| format!("c{place}")).collect();
        let inner = format!("{inner} ({})", renamed.join(", "));
        let (name, value) = (&renamed[key], &renamed[value]);
        let (as_bytes, among) = match *key_type {
            Type::BYTEA => (name.clone(), format!("{name} = ANY($1::bytea[])")),
            Type::TEXT | Type::VARCHAR => {
                (format!("convert_to({name}, 'UTF8')"), format!("{name} = ANY($1::text[])"))
            }
            _ => (format!("convert_to({name}::text, 'UTF8')"), format!("{name}::text = ANY($1::text[])")),
        };
        let selected = format!("SELECT {as_bytes}, {value}::text FROM {inner}");
        Ok(Source {
            client,
            all: format!("DECLARE quipu_rows NO SCROLL CURSOR FOR {selected} ORDER BY 1"),
            some: format!("{selected} WHERE {among}"),
            has_bytes,
            number: 0,
            last_key: None,
        })
    }

    /// From now on everything is read as it is at this moment.
    pub async fn look(&mut self) -> Result<(), SourceError> {
        // The moment is that of the first query, not that of BEGIN.
        let begin = "ROLLBACK; BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT pg_current_snapshot()";
        self.client.batch_execute(begin).await?;
        (self.number, self.last_key) = (0, None);
        Ok(())
    }

    /// Begins to read all rows of this moment.
    pub async fn begin(&mut self) -> Result<(), SourceError> {
        Ok(self.client.batch_execute(&self.all).await?)
    }

    /// The next ones; none behind the last.
    pub async fn next(&mut self, count: usize) -> Result<Vec<Truth>, SourceError> {
        let rows = self.client.query(&format!("FETCH {count} FROM quipu_rows"), &[]).await?;
        rows.iter().map(|row| self.take(row)).collect()
    }

    fn take(&mut self, row: &Row) -> Result<Truth, SourceError> {
        self.number += 1;
        let number = self.number;
        let truth = truth(row).map_err(|reason| SourceError::Row { number, reason })?;
        if self.last_key.as_ref() == Some(&truth.key) {
            let reason = format!(
                "a second row for {:?}; group by the key, so that there is one",
                String::from_utf8_lossy(&truth.key)
            );
            return Err(SourceError::Row { number, reason });
        }
        self.last_key = Some(truth.key.clone());
        Ok(truth)
    }

    /// The values of some counters at this moment, those that have any.
    pub async fn of(&self, keys: &[Vec<u8>]) -> Result<HashMap<Vec<u8>, i64>, SourceError> {
        let rows = if self.has_bytes {
            let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            self.client.query(&self.some, &[&keys]).await?
        } else {
            // What is no text, or has a zero byte, cannot be there.
            let is_text = |key: &&str| !key.contains('\0');
            let keys: Vec<&str> =
                keys.iter().filter_map(|key| std::str::from_utf8(key).ok()).filter(is_text).collect();
            self.client.query(&self.some, &[&keys]).await?
        };
        let mut found = HashMap::with_capacity(rows.len());
        for (number, row) in (1..).zip(&rows) {
            let truth = truth(row).map_err(|reason| SourceError::Row { number, reason })?;
            if found.insert(truth.key, truth.value).is_some() {
                let reason = "two rows for one counter; group by the key, so that there is one".to_owned();
                return Err(SourceError::Row { number, reason });
            }
        }
        Ok(found)
    }
}

fn truth(row: &Row) -> Result<Truth, String> {
    let (key, value): (Option<Vec<u8>>, Option<String>) = (row.get(0), row.get(1));
    let key = key.ok_or("the key is null; leave such rows out (WHERE ... IS NOT NULL)")?;
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err(format!("a key has 1 to {KEY_BYTES_MAX} bytes, not {}", key.len()));
    }
    let shown = || String::from_utf8_lossy(&key).into_owned();
    let value = value.ok_or_else(|| format!("the value of {:?} is null; write coalesce(..., 0)", shown()))?;
    let value = whole(&value).ok_or_else(|| {
        format!("the value of {:?}, {value}, is not a whole number from -2^63 to 2^63-1", shown())
    })?;
    Ok(Truth { key, value })
}

/// `12` and `12.00`, which is what sums of NUMERIC look like.
fn whole(text: &str) -> Option<i64> {
    match text.split_once('.') {
        None => text.parse().ok(),
        Some((whole, rest)) if rest.bytes().all(|digit| digit == b'0') => whole.parse().ok(),
        Some(_) => None,
    }
}

/// The places of those that are called so, or of the two there are.
fn key_and_value(names: &[&str]) -> Result<(usize, usize), String> {
    let named = |wanted: &str| names.iter().position(|name| name.eq_ignore_ascii_case(wanted));
    match (named("key"), named("value"), names) {
        (Some(key), Some(value), _) => Ok((key, value)),
        (_, _, [_, _]) => Ok((0, 1)),
        _ => Err(format!(
            "the query gives the columns {}; name one key and one value: SELECT ... AS key, ... AS value",
            names.join(", ")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_found_by_name_or_place() {
        for (names, found) in [
            (&["key", "value"][..], Some((0, 1))),
            (&["value", "key"], Some((1, 0))),
            (&["Value", "other", "KEY"], Some((2, 0))),
            (&["page", "count"], Some((0, 1))),
            (&["?column?", "?column?"], Some((0, 1))),
            (&["page"], None),
            (&["page", "count", "day"], None),
            (&[], None),
        ] {
            assert_eq!(key_and_value(names).ok(), found, "{names:?}");
        }
    }

    #[test]
    fn values_are_whole() {
        for (text, value) in [
            ("12", Some(12)),
            ("-12.000", Some(-12)),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
            ("1.5", None),
            ("1e3", None),
            ("NaN", None),
            ("", None),
        ] {
            assert_eq!(whole(text), value, "{text}");
        }
    }
}
