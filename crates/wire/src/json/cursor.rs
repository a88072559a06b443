//! Where a list goes on, as text. Opaque to clients; what it says is:
//!
//! ```text
//! base64url( order:1 [value:8be, in the order of values] key )        order: 's' storage, 'k' key, 'v' value
//! ```

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use quipu_counting::{KEY_BYTES_MAX, ListOrder, ListPlace};

/// The cursor that goes on after `place`.
pub fn encode(order: ListOrder, place: &ListPlace) -> String {
    let mut bytes = vec![tag(order)];
    if order == ListOrder::Value {
        bytes.extend_from_slice(&place.value.to_be_bytes());
    }
    bytes.extend_from_slice(&place.key);
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The place in a cursor of a list in this order; `None` if it is not one.
pub fn decode(order: ListOrder, text: &str) -> Option<ListPlace> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    let rest = bytes.strip_prefix(&[tag(order)])?;
    let (value, key) = match order {
        ListOrder::Value => {
            let (value, key) = rest.split_first_chunk::<8>()?;
            (i64::from_be_bytes(*value), key)
        }
        ListOrder::Storage | ListOrder::Key => (0, rest),
    };
    (1..=KEY_BYTES_MAX).contains(&key.len()).then(|| ListPlace { value, key: key.to_vec() })
}

fn tag(order: ListOrder) -> u8 {
    match order {
        ListOrder::Storage => b's',
        ListOrder::Key => b'k',
        ListOrder::Value => b'v',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_leads_back_to_its_place() {
        for (order, value) in [(ListOrder::Storage, 0), (ListOrder::Key, 0), (ListOrder::Value, i64::MIN)] {
            let place = ListPlace { value, key: vec![0xff, b'/', 0] };
            assert_eq!(decode(order, &encode(order, &place)), Some(place), "{order:?}");
        }
    }

    #[test]
    fn what_is_no_cursor_of_this_list_is_refused() {
        let place = ListPlace { value: 7, key: b"a".to_vec() };
        let too_long = ListPlace { value: 7, key: vec![b'k'; KEY_BYTES_MAX + 1] };
        for text in ["", "0", "!", "a", &encode(ListOrder::Value, &place), &encode(ListOrder::Key, &too_long)]
        {
            assert_eq!(decode(ListOrder::Key, text), None, "{text}");
        }
        assert_eq!(decode(ListOrder::Value, &encode(ListOrder::Key, &place)), None);
    }
}
