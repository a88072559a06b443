//! Places for connections, named by tokens that are never valid twice.
//!
//! ```text
//!   token   63        32 31         0
//!           generation   index        a place that is used again has another generation
//! ```
//!
//! A connection may die while work for it is under way; the answer then finds that its token names nothing.

use mio::Token;

/// Values by token.
#[derive(Debug)]
pub struct Slots<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Default for Slots<T> {
    fn default() -> Slots<T> {
        Slots { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    /// A token for a value that is yet to be put there.
    pub fn reserve(&mut self) -> Token {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 0, value: None });
            (self.places.len() - 1) as u32
        });
        token(index, self.places[index as usize].generation)
    }

    /// Puts a value where its token says. A token that is no longer valid drops it.
    #[inline]
    pub fn put_back(&mut self, token: Token, value: T) {
        if let Some(place) = self.place(token) {
            place.value = Some(value);
        }
    }

    /// Takes a value out; its token stays reserved.
    #[inline]
    pub fn take(&mut self, token: Token) -> Option<T> {
        self.place(token)?.value.take()
    }

    /// Looks at a value.
    #[inline]
    pub fn get_mut(&mut self, token: Token) -> Option<&mut T> {
        self.place(token)?.value.as_mut()
    }

    /// Ends a token; its place is free.
    pub fn release(&mut self, token: Token) {
        if let Some(place) = self.place(token) {
            place.value = None;
            // The highest generations are left out, so that no token equals one of the loop's own.
            place.generation = (place.generation + 1) % (u32::MAX / 2);
            self.free.push(index(token) as u32);
        }
    }

    /// Whether no token is reserved.
    pub fn is_empty(&self) -> bool {
        self.free.len() == self.places.len()
    }

    /// The tokens of all values.
    pub fn tokens(&self) -> Vec<Token> {
        let places = self.places.iter().enumerate();
        places
            .filter(|(_, place)| place.value.is_some())
            .map(|(at, place)| token(at as u32, place.generation))
            .collect()
    }

    #[inline]
    fn place(&mut self, token: Token) -> Option<&mut Place<T>> {
        self.places.get_mut(index(token)).filter(|place| place.generation as usize == token.0 >> 32)
    }
}

fn token(index: u32, generation: u32) -> Token {
    Token((generation as usize) << 32 | index as usize)
}

fn index(token: Token) -> usize {
    token.0 & u32::MAX as usize
}

#[cfg(test)]
mod tests {
    use super::Slots;

    #[test]
    fn a_token_is_never_valid_twice() {
        let mut slots = Slots::default();
        let first = slots.reserve();
        slots.put_back(first, "first");
        let other = slots.reserve();
        slots.put_back(other, "other");
        assert_eq!(slots.take(first), Some("first"));
        assert_eq!(slots.get_mut(first), None, "it is out");
        slots.put_back(first, "first");
        slots.release(first);
        assert_eq!(slots.get_mut(first), None);
        let second = slots.reserve();
        assert_ne!(first, second);
        slots.put_back(second, "second");
        slots.put_back(first, "late");
        assert_eq!(slots.get_mut(second), Some(&mut "second"));
        assert_eq!(slots.tokens(), [second, other]);
        slots.release(second);
        slots.release(other);
        assert!(slots.is_empty());
    }
}
