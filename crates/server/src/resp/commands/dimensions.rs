//! Dimensions in commands.
//!
//! ```text
//!   Q.DGET key name value [name value ...]     -> the part of the value that belongs to these
//!                                                 with `*` for a value: [[value, ..., sum], ...], the first 1,000
//!   ... DIM name value                         -> in Q.ADD what an addition belongs to, in Q.SUM what is added up
//! ```

use quipu_counting::rollup::dimensions_problem;
use quipu_counting::{Slice, Sliced};
use quipu_wire::resp::{Arguments, Encoder, errors};

use super::{Complaint, Drafted, check_key, is_option};
use crate::resp::plan::{Draft, Plan};

/// Q.DGET.
pub fn get(draft: &mut Draft, key: &[u8], words: Arguments<'_, '_>) -> Drafted {
    let mut words = words.iter();
    let mut pairs = Vec::new();
    while let Some(name) = words.next() {
        pairs.push((name, words.next().ok_or_else(|| errors::wrong_arity("q.dget"))?));
    }
    let slice = slice(&pairs)?;
    check_key(key)?;
    let action = slice.action(&mut draft.batch);
    draft.request(key, action, Plan::Part { is_grouped: slice.is_grouped() });
    Ok(())
}

/// Which part of a value is meant.
pub fn slice(pairs: &[(&[u8], &[u8])]) -> Result<Slice, Complaint> {
    let mut texts = Vec::with_capacity(pairs.len());
    for (name, value) in pairs {
        texts.push((text(name)?.to_owned(), text(value)?.to_owned()));
    }
    Slice::new(texts).map_err(|problem| format!("ERR {problem}").into())
}

/// What an addition belongs to, in the order of the names.
pub fn told<'a>(pairs: &[(&'a [u8], &'a [u8])]) -> Result<Vec<(&'a str, &'a str)>, Complaint> {
    let mut texts = Vec::with_capacity(pairs.len());
    for (name, value) in pairs {
        texts.push((text(name)?, text(value)?));
    }
    texts.sort_unstable();
    if let Some(problem) = dimensions_problem(texts.iter().copied()) {
        return Err(format!("ERR {problem}").into());
    }
    // Which of two would count is for nobody to guess.
    if !texts.is_sorted_by(|(a, _), (b, _)| a < b) {
        return Err(errors::SYNTAX.into());
    }
    Ok(texts)
}

/// Names and values as they came.
type Pairs<'a> = Vec<(&'a [u8], &'a [u8])>;

/// All options of a command that has no others than DIM.
pub fn only<'a>(words: Arguments<'_, 'a>) -> Result<Pairs<'a>, Complaint> {
    let mut words = words.iter();
    let mut pairs = Vec::new();
    while let Some(word) = words.next() {
        match (is_option(word, "dim"), words.next(), words.next()) {
            (true, Some(name), Some(value)) => pairs.push((name, value)),
            _ => return Err(errors::SYNTAX.into()),
        }
    }
    Ok(pairs)
}

fn text(bytes: &[u8]) -> Result<&str, Complaint> {
    std::str::from_utf8(bytes).map_err(|_| "ERR names and values of dimensions are UTF-8".into())
}

/// What Q.DGET answers.
pub fn answer(sliced: &Sliced, is_grouped: bool, encoder: &mut Encoder<'_>) {
    if !is_grouped {
        return encoder.integer(sliced.value);
    }
    if sliced.is_partial {
        return encoder.error(errors::TOO_MANY_GROUPS);
    }
    encoder.array(sliced.groups.len());
    for (values, sum) in &sliced.groups {
        encoder.array(values.len() + 1);
        values.iter().for_each(|value| encoder.bulk(value.as_bytes()));
        encoder.integer(*sum);
    }
}
