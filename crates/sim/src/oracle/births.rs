//! Births: which number stands behind each ticket, and that no life of a counter gets a number twice.

use std::collections::BTreeMap;

use super::rules::Ticket;
use crate::ask::Key;

/// All births of a world.
#[derive(Debug, Default)]
pub struct Births {
    tickets: Vec<Birth>,
    /// The numbers that lives of each key had, ascending, with their tickets; lives that a crash took back
    /// included where somebody may have seen them.
    lives: BTreeMap<Key, Vec<(Ticket, u64)>>,
}

#[derive(Debug)]
struct Birth {
    number: Option<u64>,
    /// `None` for a counter whose expiry was past at its birth: it was shown and never was.
    key: Option<Key>,
}

impl Births {
    /// The ticket the next birth would get.
    pub fn next(&self) -> Ticket {
        self.tickets.len() as Ticket
    }

    /// Takes that ticket for a counter; `None` for one that was dead at its birth.
    pub fn take(&mut self, key: Option<Key>) {
        self.tickets.push(Birth { number: None, key });
    }

    /// The number of a ticket, if it was ever shown.
    pub fn number(&self, ticket: Ticket) -> Option<u64> {
        self.tickets[ticket as usize].number
    }

    /// Whether a number may stand behind a ticket.
    pub fn fits(&self, ticket: Ticket, number: u64) -> bool {
        let birth = &self.tickets[ticket as usize];
        match (birth.number, birth.key) {
            (Some(known), _) => known == number,
            (None, Some(key)) => {
                let lives = self.lives.get(&key).map_or(&[][..], Vec::as_slice);
                lives.iter().all(|(other, taken)| (*other < ticket) == (*taken < number) && *taken != number)
            }
            (None, None) => true,
        }
    }

    /// Births from this ticket on never came to be, and nobody was shown them.
    pub fn forget_from(&mut self, first: Ticket) {
        for lives in self.lives.values_mut() {
            lives.retain(|(ticket, _)| *ticket < first);
        }
    }

    /// Takes note of the number of a ticket; `false` when it does not fit.
    #[must_use]
    pub fn learn(&mut self, ticket: Ticket, number: u64) -> bool {
        if !self.fits(ticket, number) {
            return false;
        }
        let birth = &mut self.tickets[ticket as usize];
        if birth.number.is_none() {
            birth.number = Some(number);
            if let Some(key) = birth.key {
                let lives = self.lives.entry(key).or_default();
                let at = lives.partition_point(|(other, _)| *other < ticket);
                lives.insert(at, (ticket, number));
            }
        }
        true
    }
}
