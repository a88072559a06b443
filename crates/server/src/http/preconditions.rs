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

/// What a call demands of the counter: all of these, as far as they are given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Precondition {
    if_match: Option<Tags>,
    if_none_match: Option<Tags>,
    /// What the body demands; 0 means that the counter must not exist.
    version: Option<u64>,
}

/// Births begin with 1, so no counter has this tag.
const NEVER: Condition = Condition::Tag { birth: 0, version: 0 };

impl Precondition {
    /// The same, and the version that a body demands.
    pub fn and_version(self, version: Option<u64>) -> Precondition {
        Precondition { version, ..self }
    }

    /// As something that counting itself decides, if it can be said so.
    pub fn simple(&self) -> Option<Condition> {
        match self {
            Precondition { if_match: None, if_none_match: None, version } => {
                Some(version.map_or(Condition::Always, Condition::Version))
            }
            Precondition { if_match: Some(Tags::Star), if_none_match: None, version: None } => {
                Some(Condition::Exists)
            }
            Precondition { if_match: None, if_none_match: Some(Tags::Star), version: None } => {
                Some(Condition::Absent)
            }
            Precondition { if_match: Some(Tags::List(tags)), if_none_match: None, version: None } => {
                match tags[..] {
                    [] => Some(NEVER),
                    [only] => Some(only.condition()),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Whether a counter in this state satisfies `If-Match` and the version.
    pub fn matches(&self, live: Option<&Cell>) -> bool {
        self.if_match.as_ref().is_none_or(|tags| tags.match_one(live))
            && self.version.is_none_or(|version| live.map_or(0, |cell| cell.version) == version)
    }

    /// Whether a counter in this state satisfies all of it.
    pub fn holds(&self, live: Option<&Cell>) -> bool {
        self.matches(live) && !self.if_none_match.as_ref().is_some_and(|tags| tags.match_one(live))
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

/// For calls that take no condition: one that was passed over would be worse than an error.
pub struct Unconditional;

impl<S: Sync> FromRequestParts<S> for Unconditional {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Unconditional, Refused> {
        match [IF_MATCH, IF_NONE_MATCH].into_iter().find(|name| parts.headers.contains_key(name)) {
            None => Ok(Unconditional),
            Some(_) => Err(Problem::malformed("this call takes neither If-Match nor If-None-Match").into()),
        }
    }
}

fn precondition(headers: &HeaderMap) -> Result<Precondition, String> {
    if !headers.contains_key(IF_MATCH) && !headers.contains_key(IF_NONE_MATCH) {
        return Ok(Precondition::default());
    }
    let if_match = Tags::of(headers, "If-Match", |is_weak| !is_weak)?;
    let if_none_match = Tags::of(headers, "If-None-Match", |_| true)?;
    Ok(Precondition { if_match, if_none_match, version: None })
}

/// What stands in one of the two headers.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Tags {
    Star,
    /// Those that may match a counter.
    List(Vec<Tag>),
}

impl Tags {
    fn of(headers: &HeaderMap, name: &str, counts: impl Fn(bool) -> bool) -> Result<Option<Tags>, String> {
        let expected =
            || format!("the header {name} must be * or a list of ETags as replies gave them, like \"12-7\"");
        let mut found: Option<Tags> = None;
        for value in headers.get_all(name) {
            let text = value.to_str().map_err(|_| expected())?.trim();
            if text == "*" && found.is_none() {
                found = Some(Tags::Star);
                continue;
            }
            let tags = parse_list(text).ok_or_else(expected)?;
            let tags = tags.into_iter().filter(|(_, is_weak)| counts(*is_weak)).map(|(tag, _)| tag);
            match found.get_or_insert(Tags::List(Vec::new())) {
                Tags::Star => return Err(expected()),
                Tags::List(list) => list.extend(tags),
            }
        }
        Ok(found)
    }

    fn match_one(&self, live: Option<&Cell>) -> bool {
        match self {
            Tags::Star => live.is_some(),
            Tags::List(tags) => live.is_some_and(|cell| tags.contains(&Tag::of(cell))),
        }
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

    fn list(tags: &[Tag]) -> Option<Tags> {
        Some(Tags::List(tags.to_vec()))
    }

    #[test]
    fn what_headers_say() {
        let star = || Some(Tags::Star);
        for (given, expected) in [
            (&[][..], Some((None, None))),
            (&[("if-match", "\"12-7\"")], Some((list(&[TWELVE]), None))),
            (&[("if-match", " \"12-7\" ,, ")], Some((list(&[TWELVE]), None))),
            (&[("if-match", "*")], Some((star(), None))),
            (&[("if-match", "W/\"12-7\"")], Some((list(&[]), None))),
            (&[("if-match", "\"somebody, else's\"")], Some((list(&[]), None))),
            (&[("if-match", "\"012-7\", \"+12-7\"")], Some((list(&[]), None))),
            (&[("if-match", "\"1-1\", W/\"3-3\", \"12-7\"")], Some((list(&[OTHER, TWELVE]), None))),
            (&[("if-match", "\"1-1\""), ("if-match", "\"12-7\"")], Some((list(&[OTHER, TWELVE]), None))),
            (&[("if-none-match", "*")], Some((None, star()))),
            (&[("if-none-match", "W/\"12-7\"")], Some((None, list(&[TWELVE])))),
            (&[("if-none-match", "\"x\"")], Some((None, list(&[])))),
            (&[("if-match", "*"), ("if-none-match", "\"1-1\"")], Some((star(), list(&[OTHER])))),
            (&[("if-match", "")], None),
            (&[("if-match", ",")], None),
            (&[("if-match", "12-7")], None),
            (&[("if-match", "\"12-7")], None),
            (&[("if-match", "\"12-7\" \"1-1\"")], None),
            (&[("if-match", "w/\"12-7\"")], None),
            (&[("if-match", "*, \"12-7\"")], None),
            (&[("if-match", "*"), ("if-match", "*")], None),
            (&[("if-match", "\"1-1\""), ("if-match", "*")], None),
        ] {
            let found = precondition(&headers(given)).ok();
            let expected = expected.map(|(if_match, if_none_match)| Precondition {
                if_match,
                if_none_match,
                version: None,
            });
            assert_eq!(found, expected, "{given:?}");
        }
    }

    #[test]
    fn states_that_satisfy() {
        let cell = Cell { birth: 12, version: 7, ..Cell::ABSENT };
        let (tag, never) = (Some(TWELVE.condition()), Some(NEVER));
        for (if_match, if_none_match, version, simple, there, absent) in [
            (None, None, None, Some(Condition::Always), true, true),
            (None, None, Some(7), Some(Condition::Version(7)), true, false),
            (None, None, Some(0), Some(Condition::Version(0)), false, true),
            (Some(Tags::Star), None, None, Some(Condition::Exists), true, false),
            (None, Some(Tags::Star), None, Some(Condition::Absent), false, true),
            (list(&[TWELVE]), None, None, tag, true, false),
            (list(&[]), None, None, never, false, false),
            (list(&[OTHER, TWELVE]), None, None, None, true, false),
            (list(&[OTHER, OTHER]), None, None, None, false, false),
            (None, list(&[OTHER]), None, None, true, true),
            (None, list(&[TWELVE]), None, None, false, true),
            (Some(Tags::Star), list(&[TWELVE]), None, None, false, false),
            (Some(Tags::Star), list(&[OTHER]), Some(7), None, true, false),
            (Some(Tags::Star), None, Some(8), None, false, false),
        ] {
            let given = Precondition { if_match, if_none_match, version };
            assert_eq!(given.simple(), simple, "{given:?}");
            assert_eq!((given.holds(Some(&cell)), given.holds(None)), (there, absent), "{given:?}");
            assert_eq!(given.in_state(None), if absent { Condition::Absent } else { NEVER });
            assert_eq!(given.in_state(Some(&cell)), if there { TWELVE.condition() } else { NEVER });
        }
    }
}
