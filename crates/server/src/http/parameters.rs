//! Query parameters, read strictly: a name that is not known is refused rather than ignored.

use quipu_wire::json::problem::Problem;

use super::answer::Refused;
use super::extract::decode;

/// The query parameters of a call that takes some: names it knows, most at most once, values percent-decoded to any
/// bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct Parameters(Vec<(&'static str, Vec<u8>)>);

impl Parameters {
    /// Reads `query`; a name that is not among `known` is refused rather than ignored.
    pub fn parse(query: Option<&str>, known: &[&'static str]) -> Result<Parameters, Refused> {
        Parameters::parse_repeated(query, known, &[])
    }

    /// The same; those of `repeated` may be given more than once.
    pub fn parse_repeated(
        query: Option<&str>,
        known: &[&'static str],
        repeated: &[&'static str],
    ) -> Result<Parameters, Refused> {
        let mut found: Vec<(&'static str, Vec<u8>)> = Vec::new();
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let Some(name) = known.iter().find(|known| **known == name) else {
                let detail =
                    format!("the query parameter {name} is not known here; there are {}", known.join(", "));
                return Err(Problem::malformed(detail).into());
            };
            if !repeated.contains(name) && found.iter().any(|(other, _)| other == name) {
                let detail = format!("the query parameter {name} is given more than once");
                return Err(Problem::malformed(detail).into());
            }
            // Forms and most libraries write a blank as a plus.
            let value = decode(&value.replace('+', " "))
                .map_err(|problem| Problem::malformed(format!("the query parameter {name}: {problem}")))?;
            found.push((name, value));
        }
        Ok(Parameters(found))
    }

    /// The bytes of a parameter, as often as it is given.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.0.iter().filter(move |(known, _)| *known == name).map(|(_, value)| &value[..])
    }

    /// The bytes of a parameter.
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| &value[..])
    }

    /// A parameter read by `read`, which returns `None` for what is not `expected`.
    pub fn read<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, Refused> {
        let Some(value) = self.bytes(name) else { return Ok(None) };
        let parsed = std::str::from_utf8(value).ok().and_then(read);
        parsed.map(Some).ok_or_else(|| {
            let shown = String::from_utf8_lossy(value);
            Problem::malformed(format!("the query parameter {name} must be {expected}, not {shown:?}")).into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_parameters() {
        let known = ["prefix", "limit"];
        let given = Parameters::parse(Some("prefix=a%2F%ff+b&limit=5"), &known).unwrap();
        assert_eq!(given.bytes("prefix"), Some(&b"a/\xff b"[..]));
        assert_eq!(given.read("limit", "a number", |text| text.parse::<u8>().ok()).unwrap(), Some(5));
        assert!(given.read("prefix", "a number", |text| text.parse::<u8>().ok()).is_err());
        for (query, expected) in [
            (None, None),
            (Some(""), None),
            (Some("&"), None),
            (Some("prefix"), Some(&b""[..])),
            (Some("prefix="), Some(b"")),
        ] {
            assert_eq!(Parameters::parse(query, &known).unwrap().bytes("prefix"), expected);
        }
        for refused in ["limt=5", "limit=1&limit=1", "prefix=%", "=", "prefix=%4"] {
            assert!(Parameters::parse(Some(refused), &known).is_err(), "{refused}");
        }
    }
}
