//! Lists of counters.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use quipu_counting::{ListOrder, ListPage, Listing, Unavailable};
use quipu_wire::json::cursor;
use quipu_wire::json::problem::Problem;
use quipu_wire::json::reply::ListBody;

use super::App;
use super::answer::{self, Answer, Refused};
use super::parameters::Parameters;

/// Counters of a page where the call does not say.
pub const LIMIT_DEFAULT: usize = 100;
/// The most counters of a page: a reply of some megabytes.
pub const LIMIT_MAX: usize = 10_000;
/// About what one counter takes in a reply, with a key of usual length.
const REPLY_COUNTER_BYTES: usize = 256;

pub async fn list(State(app): State<Arc<App>>, uri: Uri) -> Answer {
    let listing = listing(uri.query())?;
    let order = listing.order;
    let room = app.load.reserve(listing.limit * REPLY_COUNTER_BYTES)?;
    let page = walk(&app, listing).await?;
    let reply_bytes = page.counters.len() * REPLY_COUNTER_BYTES;
    Ok(answer::json_in(room, reply_bytes, &ListBody::of(order, &page)))
}

fn listing(query: Option<&str>) -> Result<Listing, Refused> {
    let parameters = Parameters::parse(query, &["prefix", "cursor", "limit", "order"])?;
    let order = parameters.read(
        "order",
        "key or value (leave it out where order does not matter)",
        |text| match text {
            "key" => Some(ListOrder::Key),
            "value" => Some(ListOrder::Value),
            _ => None,
        },
    )?;
    let order = order.unwrap_or_default();
    let expected = format!("a number from 1 to {LIMIT_MAX}");
    let limit = parameters
        .read("limit", &expected, |text| text.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit)))?;
    let expected = "the cursor of the page before, of a list in the same order";
    // Empty, it is the beginning: a loop over pages then has one form for the first and the others.
    let after = match parameters.bytes("cursor") {
        None | Some(b"") => None,
        Some(_) => parameters.read("cursor", expected, |text| cursor::decode(order, text))?,
    };
    let prefix = parameters.bytes("prefix").unwrap_or_default().to_vec();
    Ok(Listing { prefix, order, after, limit: limit.unwrap_or(LIMIT_DEFAULT) })
}

/// A walk reads from disk, so it must not hold a thread that others are served by.
pub async fn walk(app: &Arc<App>, listing: Listing) -> Result<ListPage, Refused> {
    let turn = app.load.walk().await?;
    let app = Arc::clone(app);
    let walked = tokio::task::spawn_blocking(move || {
        let page = app.counters.list(&listing, app.clock.now_ms());
        drop(turn);
        page
    });
    let page = walked.await.unwrap_or_else(|error| Err(Unavailable::Unreadable(error.to_string())));
    page.map_err(|reason| Problem::unavailable(&reason).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use quipu_counting::ListPlace;

    #[test]
    fn queries() {
        let default = Listing { limit: LIMIT_DEFAULT, ..Listing::default() };
        let place = ListPlace { value: -3, key: b"b".to_vec() };
        let by_value = cursor::encode(ListOrder::Value, &place);
        for (query, expected) in [
            (String::new(), default.clone()),
            ("prefix=&cursor=".to_owned(), default.clone()),
            (
                "prefix=a%2F%ff&limit=7".to_owned(),
                Listing { prefix: b"a/\xff".to_vec(), limit: 7, ..default.clone() },
            ),
            ("order=key".to_owned(), Listing { order: ListOrder::Key, ..default.clone() }),
            (
                format!("order=value&cursor={by_value}"),
                Listing { order: ListOrder::Value, after: Some(place), ..default.clone() },
            ),
        ] {
            assert_eq!(listing(Some(&query)).unwrap(), expected, "{query}");
        }
        for query in [
            "order=age",
            "limit=0",
            "limit=",
            "order=",
            "limit=10001",
            "limit=-1",
            "limit=x",
            "limit=5&limit=5",
            "cursor=%20",
            "offset=5",
            &format!("order=key&cursor={by_value}"),
            &format!("cursor={by_value}"),
        ] {
            let refused = listing(Some(query)).unwrap_err();
            assert_eq!(refused.problem().reason, "malformed", "{query}");
        }
    }
}
