//! A producer's session as it lies in Redis: epoch, sequence, and the number of the refusal of that sequence.

use quipu_counting::{Refusal, Session};

/// What the hash of producers says of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Producer {
    Known(Session),
    /// It is not in the hash, and there is no room for another.
    NoRoom,
}

/// What the function says where there is no room for a producer.
const NO_ROOM: &str = "full";

impl Producer {
    pub(crate) fn read(text: &str) -> Option<Producer> {
        if text == NO_ROOM {
            return Some(Producer::NoRoom);
        }
        let mut words = text.split(' ');
        let (epoch, sequence) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let refusal = match words.next()?.parse().ok()? {
            0 => None,
            number => Some(Refusal::from_number(number)?),
        };
        words.next().is_none().then_some(Producer::Known(Session { epoch, sequence, refusal }))
    }

    /// As it is stored, if it is.
    pub(crate) fn text(&self) -> Option<String> {
        match self {
            Producer::Known(session) => Some(text(session)),
            Producer::NoRoom => None,
        }
    }
}

/// A session as it is stored.
pub(crate) fn text(session: &Session) -> String {
    let refusal = session.refusal.map_or(0, Refusal::number);
    format!("{} {} {refusal}", session.epoch, session.sequence)
}

/// What the stream tells of a producer: its session, then its name.
pub(super) fn to_tell(name: &[u8], session: &Session) -> Vec<u8> {
    [text(session).as_bytes(), b" ", name].concat()
}

/// A producer and its session as it is stored, from what the stream tells.
pub(crate) fn told_session(told: &[u8]) -> Option<(Vec<u8>, String)> {
    let mut spaces = told.iter().enumerate().filter(|(_, byte)| **byte == b' ').map(|(place, _)| place);
    let end = spaces.nth(2)?;
    let session = std::str::from_utf8(&told[..end]).ok()?;
    let is_one = matches!(Producer::read(session), Some(Producer::Known(_)));
    is_one.then(|| (told[end + 1..].to_vec(), session.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_read_as_they_are_stored() {
        for refusal in [None, Some(Refusal::AboveCeiling)] {
            let session = Session { epoch: 3, sequence: u64::MAX, refusal };
            assert_eq!(Producer::read(&text(&session)), Some(Producer::Known(session)));
            let told = told_session(&to_tell(b"a b", &session));
            assert_eq!(told, Some((b"a b".to_vec(), text(&session))));
        }
        assert_eq!(Producer::read("full"), Some(Producer::NoRoom));
        for broken in ["", "1", "1 2", "1 2 200", "1 2 0 3", "-"] {
            assert_eq!(Producer::read(broken), None, "{broken}");
        }
    }
}
