//! `If-Match` and `If-None-Match`: what must hold of a counter for a call to be done.
//!
//! The tag of a counter is `"birth-version"`, so that a counter deleted and made anew never matches an old tag. Tags of
//! any other form are somebody else's and match nothing. `If-Match` compares strongly, so a weak tag matches nothing
//! there; `If-None-Match` compares weakly.

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::header::{IF_MATCH, IF_NONE_MATCH};
use axum::http::request::Parts;
use quipu_counting::{Cell, Condition};
use quipu_wire::json::problem::Problem;

use super::answer::Refused;

/// Which counter, in which state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    birth: u64,
    version: u64,
}

impl Tag {
    /// The tag of a counter as it is.
    pub fn of(cell: &Cell) -> Tag {
        Tag { birth: cell.birth, version: cell.version }
    }

    fn parse(text: &str) -> Option<Tag> {
        let (birth, version) = text.split_once('-')?;
        let tag = Tag { birth: birth.parse().ok()?, version: version.parse().ok()? };
        // Only the form in which we write it.
        (format!("{}-{}", tag.birth, tag.version) == text).then_some(tag)
    }

    fn condition(self) -> Condition {
        Condition::Tag { birth: self.birth, version: self.version }
    }
}

/// What the headers demand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// Something that counting itself decides.
    Simple(Condition),
    /// One of these, as the counter is found.
    AnyOf(Vec<Tag>),
    /// None of these.
    NoneOf(Vec<Tag>),
}

/// Births begin with 1, so no counter has this tag.
const NEVER: Condition = Condition::Tag { birth: 0, version: 0 };

impl Precondition {
    /// Whether a counter in this state satisfies it.
    pub fn holds(&self, live: Option<&Cell>) -> bool {
        let matches = |tags: &[Tag]| live.is_some_and(|cell| tags.contains(&Tag::of(cell)));
        match self {
            Precondition::Simple(Condition::Always) => true,
            Precondition::Simple(Condition::Exists) => live.is_some(),
            Precondition::Simple(Condition::Absent) => live.is_none(),
            Precondition::Simple(Condition::Version(version)) => {
                live.map_or(0, |cell| cell.version) == *version
            }
            Precondition::Simple(Condition::Tag { birth, version }) => {
                matches(&[Tag { birth: *birth, version: *version }])
            }
            Precondition::AnyOf(tags) => matches(tags),
            Precondition::NoneOf(tags) => !matches(tags),
        }
    }

    /// What to demand of counting, given the state in which the counter was found: that it is still in it. One that
    /// does not satisfy the precondition is given a condition that cannot hold.
    pub fn in_state(&self, live: Option<&Cell>) -> Condition {
        match (self.holds(live), live) {
            (false, _) => NEVER,
            (true, Some(cell)) => Tag::of(cell).condition(),
            (true, None) => Condition::Absent,
        }
    }
}

impl<S: Sync> FromRequestParts<S> for Precondition {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Precondition, Refused> {
        Ok(precondition(&parts.headers).map_err(Problem::malformed)?)
    }
}

fn precondition(headers: &HeaderMap) -> Result<Precondition, String> {
    if !headers.contains_key(IF_MATCH) && !headers.contains_key(IF_NONE_MATCH) {
        return Ok(Precondition::Simple(Condition::Always));
    }
    match (Tags::of(headers, "If-Match")?, Tags::of(headers, "If-None-Match")?) {
        (Some(_), Some(_)) => Err("If-Match and If-None-Match are both given; send one of them".to_owned()),
        (Some(Tags::Star), None) => Ok(Precondition::Simple(Condition::Exists)),
        (None, Some(Tags::Star)) => Ok(Precondition::Simple(Condition::Absent)),
        (Some(Tags::List(tags)), None) => {
            let strong: Vec<Tag> = tags.into_iter().filter(|(_, weak)| !weak).map(|(tag, _)| tag).collect();
            Ok(match strong[..] {
                [] => Precondition::Simple(NEVER),
                [only] => Precondition::Simple(only.condition()),
                _ => Precondition::AnyOf(strong),
            })
        }
        (None, Some(Tags::List(tags))) => {
            Ok(Precondition::NoneOf(tags.into_iter().map(|(tag, _)| tag).collect()))
        }
        (None, None) => Ok(Precondition::Simple(Condition::Always)),
    }
}

/// What stands in one of the two headers.
enum Tags {
    Star,
    /// Tags that may be ours, and whether they are weak.
    List(Vec<(Tag, bool)>),
}

impl Tags {
    fn of(headers: &HeaderMap, name: &str) -> Result<Option<Tags>, String> {
        let expected =
            || format!("the header {name} must be * or a list of ETags as replies gave them, like \"12-7\"");
        let mut found: Option<Tags> = None;
        for value in headers.get_all(name) {
            let text = value.to_str().map_err(|_| expected())?.trim();
            found = match (found, text) {
                (None, "*") => Some(Tags::Star),
                (Some(Tags::Star), _) | (Some(_), "*") => return Err(expected()),
                (None, text) => Some(Tags::List(parse_list(text).ok_or_else(expected)?)),
                (Some(Tags::List(mut list)), text) => {
                    list.extend(parse_list(text).ok_or_else(expected)?);
                    Some(Tags::List(list))
                }
            };
        }
        Ok(found)
    }
}

/// `"a", W/"b"`, where tags may contain commas. Empty elements are allowed, an empty list is not.
fn parse_list(text: &str) -> Option<Vec<(Tag, bool)>> {
    let (mut rest, mut list, mut is_empty) = (text, Vec::new(), true);
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        if rest.is_empty() {
            return (!is_empty).then_some(list);
        }
        let (is_weak, quoted) = match rest.strip_prefix("W/") {
            Some(quoted) => (true, quoted),
            None => (false, rest),
        };
        let (tag, after) = quoted.strip_prefix('"')?.split_once('"')?;
        is_empty = false;
        list.extend(Tag::parse(tag).map(|tag| (tag, is_weak)));
        rest = after.trim_start_matches([' ', '\t']);
        if !rest.is_empty() && !rest.starts_with(',') {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, HeaderValue::from_static(value));
        }
        map
    }

    const TWELVE: Tag = Tag { birth: 12, version: 7 };
    const OTHER: Tag = Tag { birth: 1, version: 1 };

    #[test]
    fn what_headers_say() {
        use Precondition::{AnyOf, NoneOf, Simple};
        for (given, expected) in [
            (&[][..], Some(Simple(Condition::Always))),
            (&[("if-match", "\"12-7\"")], Some(Simple(TWELVE.condition()))),
            (&[("if-match", " \"12-7\" ,, ")], Some(Simple(TWELVE.condition()))),
            (&[("if-match", "*")], Some(Simple(Condition::Exists))),
            (&[("if-match", "W/\"12-7\"")], Some(Simple(NEVER))),
            (&[("if-match", "\"somebody, else's\"")], Some(Simple(NEVER))),
            (&[("if-match", "\"012-7\", \"+12-7\"")], Some(Simple(NEVER))),
            (&[("if-match", "\"1-1\", W/\"3-3\", \"12-7\"")], Some(AnyOf(vec![OTHER, TWELVE]))),
            (&[("if-match", "\"1-1\""), ("if-match", "\"12-7\"")], Some(AnyOf(vec![OTHER, TWELVE]))),
            (&[("if-none-match", "*")], Some(Simple(Condition::Absent))),
            (&[("if-none-match", "\"12-7\"")], Some(NoneOf(vec![TWELVE]))),
            (&[("if-none-match", "W/\"12-7\"")], Some(NoneOf(vec![TWELVE]))),
            (&[("if-none-match", "\"x\"")], Some(NoneOf(vec![]))),
            (&[("if-match", "")], None),
            (&[("if-match", ",")], None),
            (&[("if-match", "12-7")], None),
            (&[("if-match", "\"12-7")], None),
            (&[("if-match", "\"12-7\" \"1-1\"")], None),
            (&[("if-match", "w/\"12-7\"")], None),
            (&[("if-match", "*, \"12-7\"")], None),
            (&[("if-match", "*"), ("if-match", "*")], None),
            (&[("if-match", "*"), ("if-none-match", "*")], None),
        ] {
            assert_eq!(precondition(&headers(given)).ok(), expected, "{given:?}");
        }
    }

    #[test]
    fn states_that_satisfy() {
        let cell = Cell { birth: 12, version: 7, ..Cell::ABSENT };
        for (given, there, absent) in [
            (Precondition::Simple(Condition::Always), true, true),
            (Precondition::Simple(Condition::Exists), true, false),
            (Precondition::Simple(Condition::Absent), false, true),
            (Precondition::Simple(TWELVE.condition()), true, false),
            (Precondition::Simple(NEVER), false, false),
            (Precondition::AnyOf(vec![OTHER, TWELVE]), true, false),
            (Precondition::AnyOf(vec![OTHER]), false, false),
            (Precondition::NoneOf(vec![OTHER]), true, true),
            (Precondition::NoneOf(vec![TWELVE]), false, true),
        ] {
            assert_eq!((given.holds(Some(&cell)), given.holds(None)), (there, absent), "{given:?}");
            assert_eq!(given.in_state(None), if absent { Condition::Absent } else { NEVER });
            assert_eq!(given.in_state(Some(&cell)), if there { TWELVE.condition() } else { NEVER });
        }
    }
}
