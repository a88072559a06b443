//! The keys that are asked for most.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use quipu_counting::Unavailable;
use quipu_counting::hot::{HOT_KEYS_DEFAULT, HOT_KEYS_MAX};
use quipu_wire::json::hot::HotBody;
use quipu_wire::json::problem::Problem;

use super::App;
use super::answer::{self, Answer, Refused};
use super::parameters::Parameters;

pub async fn hot(State(app): State<Arc<App>>, uri: Uri) -> Answer {
    let n = number(uri.query())?;
    let turn = app.load.walk().await?;
    // Other nodes may have to be asked: that must not hold a thread that others are served by.
    let asked = tokio::task::spawn_blocking(move || {
        let told = app.counters.hot(n, app.clock.now_ms());
        drop(turn);
        told
    });
    let told = asked.await.unwrap_or_else(|error| Err(Unavailable::Unreadable(error.to_string())));
    match told {
        Ok(told) => Ok(answer::json(StatusCode::OK, &HotBody::of(&told))),
        Err(reason) => Err(Problem::unavailable(&reason).into()),
    }
}

fn number(query: Option<&str>) -> Result<usize, Refused> {
    let expected = format!("a number from 1 to {HOT_KEYS_MAX}");
    let read = |text: &str| text.parse().ok().filter(|n| (1..=HOT_KEYS_MAX).contains(n));
    let n = Parameters::parse(query, &["n"])?.read("n", &expected, read)?;
    Ok(n.unwrap_or(HOT_KEYS_DEFAULT))
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn queries() {
        for (query, expected) in [("", 20), ("n=1", 1), ("n=100", 100)] {
            assert_eq!(number(Some(query)).unwrap(), expected, "{query}");
        }
        for query in ["n=", "n=0", "n=101", "n=-1", "n=x", "n=5&n=5", "limit=5"] {
            assert_eq!(number(Some(query)).unwrap_err().problem().reason, "malformed", "{query}");
        }
    }
}
