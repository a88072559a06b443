//! Q.SUM and Q.TOP: over many counters, in the background while the connection waits.
//!
//! ```text
//!   Q.SUM pattern [DIM name value]...   -> sum
//!   Q.TOP prefix count   -> [key, value, ...], in RESP3 [[key, value], ...], as ZRANGE WITHSCORES answers
//! ```
//!
//! They speak of all counters on every port: one number cannot say which part of them it is about, and so clients of the
//! Redis Cluster protocol ask any node. For the same reason a sum that lacks a partition is an error here.

use quipu_counting::{Counters, ListOrder, Listed, Listing, Selector, Slice, Unavailable};
use quipu_wire::number::parse_i64;
use quipu_wire::resp::{Arguments, Encoder, Protocol, errors};

use super::own::check_pattern;
use super::{Complaint, dimensions};
use crate::resp::background::Job;

/// The most counters of one Q.TOP, as of a page of a list.
const TOP_MAX: usize = 10_000;

/// Reads Q.SUM.
pub fn sum(arguments: Arguments<'_, '_>) -> Result<Job, Complaint> {
    let pattern = arguments.get(1).unwrap_or_default();
    check_pattern(pattern)?;
    let slice = match &dimensions::only(arguments.tail(2))?[..] {
        [] => None,
        pairs => Some(dimensions::slice(pairs)?),
    };
    Ok(Job::Sum { selector: Selector::new(pattern).of_part(slice) })
}

/// Reads Q.TOP.
pub fn top(arguments: Arguments<'_, '_>) -> Result<Job, Complaint> {
    let [prefix, count] = [1, 2].map(|place| arguments.get(place).unwrap_or_default());
    let count = parse_i64(count).ok_or(errors::NOT_AN_INTEGER)?;
    let within = usize::try_from(count).ok().filter(|count| (1..=TOP_MAX).contains(count));
    let count = within.ok_or_else(|| format!("ERR count is from 1 to {TOP_MAX}, this one is {count}"))?;
    Ok(Job::Top { prefix: prefix.to_vec(), count })
}

/// Carries out Q.SUM.
pub fn answer_sum(
    counters: &dyn Counters,
    selector: &Selector,
    now_ms: u64,
    encoder: &mut Encoder<'_>,
) -> Result<(), Unavailable> {
    if let Some(Err(undeclared)) =
        selector.slice().map(|slice| counters.policies().map(|all| all.check_slice(slice))).transpose()?
    {
        encoder.error(format!("DIMENSION {undeclared}"));
        return Ok(());
    }
    let totals = counters.aggregate(selector, now_ms)?.whole()?.totals();
    if !selector.slice().is_some_and(Slice::is_grouped) {
        put_sum(totals.sum, encoder);
        return Ok(());
    }
    if totals.has_more_groups {
        encoder.error(errors::TOO_MANY_GROUPS);
        return Ok(());
    }
    encoder.array(totals.groups.len());
    for (values, sum) in &totals.groups {
        encoder.array(values.len() + 1);
        values.iter().for_each(|value| encoder.bulk(value.as_bytes()));
        put_sum(*sum, encoder);
    }
    Ok(())
}

fn put_sum(sum: i128, encoder: &mut Encoder<'_>) {
    match i64::try_from(sum) {
        Ok(sum) => encoder.integer(sum),
        Err(_) => encoder.big_number(sum),
    }
}

/// Carries out Q.TOP.
pub fn answer_top(
    counters: &dyn Counters,
    (prefix, count): (&[u8], usize),
    now_ms: u64,
    protocol: Protocol,
    encoder: &mut Encoder<'_>,
) -> Result<(), Unavailable> {
    let listing =
        Listing { prefix: prefix.to_vec(), order: ListOrder::Value, limit: count, ..Listing::default() };
    let page = counters.list(&listing, now_ms)?;
    let is_in_pairs = protocol == Protocol::Resp3;
    encoder.array(page.counters.len() * if is_in_pairs { 1 } else { 2 });
    for Listed { key, cell, .. } in &page.counters {
        if is_in_pairs {
            encoder.array(2);
        }
        encoder.bulk(key);
        encoder.integer(cell.value);
    }
    Ok(())
}
