//! Lists of counters, page by page.

use crate::body::Kind;
use crate::cell::Cell;

/// In which order counters are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListOrder {
    /// As they are stored: an order that means nothing to a reader and makes the cheapest pages of a long list.
    #[default]
    Storage,
    /// By key, byte by byte.
    Key,
    /// The largest value first; by key where values are equal.
    Value,
}

/// Which counters are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Only keys that begin with this.
    pub prefix: Vec<u8>,
    /// In which order.
    pub order: ListOrder,
    /// Only what comes after this one in that order: the last of the page before.
    pub after: Option<ListPlace>,
    /// The most counters of a page.
    pub limit: usize,
}

/// A place in a list: the one of a counter with this value, whether or not it still exists or has that value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListPlace {
    /// The counter's value when it was listed; means something only in the order of values.
    pub value: i64,
    /// Its key.
    pub key: Vec<u8>,
}

/// A counter in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its key.
    pub key: Vec<u8>,
    /// Its numbers.
    pub cell: Cell,
    /// What it counts, if it has more than its numbers.
    pub body: Option<Kind>,
}

impl Listed {
    /// What it counts.
    pub fn kind(&self) -> Kind {
        self.body.unwrap_or(Kind::Sum)
    }
}

/// One page of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage {
    /// Counters that exist, in the order asked for.
    pub counters: Vec<Listed>,
    /// Whether others follow.
    pub more: bool,
}

impl ListPage {
    /// Where the next page goes on, if there is one.
    pub fn next(&self) -> Option<ListPlace> {
        let last = self.counters.last().filter(|_| self.more)?;
        Some(ListPlace { value: last.cell.value, key: last.key.clone() })
    }
}
