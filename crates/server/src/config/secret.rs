//! URLs hold passwords: what is shown of them, in logs, errors and `quipu config show`.

use std::fmt;

/// A URL that is shown without its password, also by accident.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretUrl(String);

impl SecretUrl {
    /// Takes a URL as it was given.
    pub fn new(text: &str) -> SecretUrl {
        SecretUrl(text.to_owned())
    }

    /// With the password, for whoever connects.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SecretUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&masked(&self.0))
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&masked(&self.0), out)
    }
}

/// Stands for what is not shown.
const HIDDEN: &str = "***";

/// The text with every password in it hidden. What is neither a URL nor names a password stays as it is.
pub fn masked(text: &str) -> String {
    let pieces: Vec<&str> = text.split(',').collect();
    let Some((scheme, _)) = text.split_once("://") else { return masked_words(text) };
    // A comma within a password: nobody can say what of it is secret.
    if text.contains('@') && pieces.iter().any(|piece| !piece.contains("://")) {
        return format!("{scheme}://{HIDDEN}");
    }
    pieces.into_iter().map(masked_piece).collect::<Vec<_>>().join(",")
}

/// As in `host=one password=secret`, which PostgreSQL takes too. A value may be quoted and have spaces in it, so what follows a password is
/// not shown either.
fn masked_words(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let Some(name) = lower.find("pass") else { return text.to_owned() };
    match lower[name..].find('=') {
        Some(sign) => format!("{}={HIDDEN}", text[..name + sign].trim_end()),
        None => text.to_owned(),
    }
}

fn masked_piece(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, query) = match rest.split_once('?') {
        Some((authority, query)) if !query.contains('@') => (authority, Some(query)),
        _ => (rest, None),
    };
    let mut shown = match authority.rsplit_once('@') {
        Some((user, host)) => match user.split_once(':') {
            Some((name, _)) => format!("{scheme}://{name}:{HIDDEN}@{host}"),
            None => format!("{scheme}://{user}@{host}"),
        },
        None => format!("{scheme}://{authority}"),
    };
    for (place, pair) in query.into_iter().flat_map(|query| query.split('&')).enumerate() {
        shown.push(if place == 0 { '?' } else { '&' });
        match pair.split_once('=') {
            Some((name, _)) if name.to_ascii_lowercase().contains("pass") => {
                shown.push_str(&format!("{name}={HIDDEN}"));
            }
            _ => shown.push_str(pair),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::{SecretUrl, masked};

    #[test]
    fn passwords_are_hidden_and_nothing_else() {
        for (text, expected) in [
            ("redis://127.0.0.1:6379", "redis://127.0.0.1:6379"),
            ("redis://:secret@one:6379/0", "redis://:***@one:6379/0"),
            ("redis://anna:secret@one", "redis://anna:***@one"),
            ("redis://anna:se@cr:et@one", "redis://anna:***@one"),
            ("redis://anna:se?cr@one", "redis://anna:***@one"),
            ("redis://:secret@a:1,redis://:secret@b:2", "redis://:***@a:1,redis://:***@b:2"),
            ("redis://:sec,ret@a:1", "redis://***"),
            ("postgres://anna@one/db?sslmode=disable", "postgres://anna@one/db?sslmode=disable"),
            ("postgres://one/db?user=anna&password=secret", "postgres://one/db?user=anna&password=***"),
            ("host=one user=anna", "host=one user=anna"),
            ("host=one password=secret user=anna", "host=one password=***"),
            ("host=one PassWord = 'se cr et, secret' user=anna", "host=one PassWord=***"),
            ("1GiB", "1GiB"),
            ("none", "none"),
        ] {
            assert_eq!(masked(text), expected);
            assert_eq!(format!("{}", SecretUrl::new(text)), expected);
            assert!(!format!("{:?}", SecretUrl::new(text)).contains("secret"));
        }
    }
}
