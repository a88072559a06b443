//! Lists of counters.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use quipu_counting::{ListOrder, ListPage, Listing, Unavailable};
use quipu_wire::json::cursor;
use quipu_wire::json::problem::Problem;
use quipu_wire::json::reply::ListBody;
use tokio::sync::Semaphore;

use super::App;
use super::answer::{self, Answer};
use super::extract::Parameters;

/// Counters of a page where the call does not say.
const LIMIT_DEFAULT: usize = 100;
/// The most counters of a page: a reply of some megabytes.
const LIMIT_MAX: usize = 10_000;
/// Walks at the same time. A walk reads memory and disk for as long as they last; more of them take from everybody
/// else and make none faster.
const WALKS_MAX: usize = 2;
/// How long a walk waits for its turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);

/// The turns of those who walk over many counters.
pub struct Walks(Arc<Semaphore>);

impl Default for Walks {
    fn default() -> Walks {
        Walks(Arc::new(Semaphore::new(WALKS_MAX)))
    }
}

pub async fn list(State(app): State<Arc<App>>, uri: Uri) -> Answer {
    let listing = listing(uri.query())?;
    let order = listing.order;
    let page = walk(&app, listing).await.map_err(|reason| Problem::unavailable(&reason))?;
    Ok(answer::json(StatusCode::OK, &ListBody::of(order, &page)))
}

fn listing(query: Option<&str>) -> Result<Listing, Problem> {
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
    let after = parameters.read("cursor", expected, |text| cursor::decode(order, text))?;
    let prefix = parameters.bytes("prefix").unwrap_or_default().to_vec();
    Ok(Listing { prefix, order, after, limit: limit.unwrap_or(LIMIT_DEFAULT) })
}

/// A walk reads from disk, so it must not hold a thread that others are served by.
async fn walk(app: &Arc<App>, listing: Listing) -> Result<ListPage, Unavailable> {
    let turn = tokio::time::timeout(TURN_TIMEOUT, Arc::clone(&app.walks.0).acquire_owned()).await;
    let Ok(Ok(turn)) = turn else {
        return Err(Unavailable::Busy("too many lists of counters are being made".to_owned()));
    };
    let app = Arc::clone(app);
    let walked = tokio::task::spawn_blocking(move || {
        let page = app.counters.list(&listing, app.clock.now_ms());
        drop(turn);
        page
    });
    walked.await.unwrap_or_else(|error| Err(Unavailable::Failed(error.to_string())))
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
            ("prefix=&cursor=&limit=&order=".to_owned(), default.clone()),
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
            "limit=10001",
            "limit=-1",
            "limit=x",
            "limit=5&limit=5",
            "cursor=%20",
            "offset=5",
            &format!("order=key&cursor={by_value}"),
            &format!("cursor={by_value}"),
        ] {
            let problem = listing(Some(query)).unwrap_err();
            assert_eq!(problem.reason, "malformed", "{query}");
        }
    }
}
