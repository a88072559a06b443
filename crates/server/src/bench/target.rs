//! The server under load: its address and protocol, and a session for what surrounds a run.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::workload::KeyFormat;
use super::{http, resp};

/// How long to wait for a connection, and for each reply around a run.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// What is spoken with the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// The Redis protocol.
    Resp,
    /// HTTP/1.1, the API of quipu.
    Http,
}

impl Protocol {
    /// As an address begins.
    pub fn scheme(self) -> &'static str {
        match self {
            Protocol::Resp => "resp",
            Protocol::Http => "http",
        }
    }

    /// Quipu's port, for targets that name none.
    fn default_port(self) -> u16 {
        match self {
            Protocol::Resp => 7071,
            Protocol::Http => 7070,
        }
    }
}

/// Nobody listens there; nothing was measured.
#[derive(Debug, thiserror::Error)]
#[error("cannot connect to {target}: is the server running?")]
pub struct Unreachable {
    target: String,
    source: std::io::Error,
}

/// Where the load goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// What is spoken there.
    pub protocol: Protocol,
    address: SocketAddr,
    /// Arguments of `AUTH`: nothing, a password, or a user and a password.
    credentials: Vec<String>,
}

impl Target {
    /// Reads `resp://[user:password@]host[:port]` (`redis://` means the same) and `http://host[:port]`.
    pub fn parse(text: &str) -> Result<Target> {
        let (protocol, rest) = match text.split_once("://") {
            Some(("resp" | "redis", rest)) => (Protocol::Resp, rest),
            Some(("http", rest)) => (Protocol::Http, rest),
            Some((scheme, _)) => {
                bail!(
                    "{text:?}: {scheme} is not spoken here; write resp://127.0.0.1:7071 or http://127.0.0.1:7070"
                )
            }
            None => (Protocol::Resp, text),
        };
        let (credentials, place) = match rest.trim_end_matches('/').rsplit_once('@') {
            Some((credentials, place)) => (parse_credentials(credentials), place),
            None => (Vec::new(), rest.trim_end_matches('/')),
        };
        ensure!(
            credentials.is_empty() || protocol == Protocol::Resp,
            "{text:?}: credentials are for resp:// only"
        );
        let has_port = place.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let place = if has_port { place.to_string() } else { format!("{place}:{}", protocol.default_port()) };
        let address = place
            .to_socket_addrs()
            .with_context(|| format!("cannot resolve {place:?}; write {}://host:port", protocol.scheme()))?
            .next()
            .with_context(|| format!("{place:?} has no address"))?;
        Ok(Target { protocol, address, credentials })
    }

    /// Whether the server runs on this machine, so that its process can be watched.
    pub fn is_local(&self) -> bool {
        self.address.ip().is_loopback()
    }

    /// The address without credentials.
    pub fn shown(&self) -> String {
        format!("{}://{}", self.protocol.scheme(), self.address)
    }

    /// Connects and logs in.
    pub fn connect(&self) -> Result<Session> {
        let stream = TcpStream::connect_timeout(&self.address, WAIT_MAX)
            .map_err(|source| Unreachable { target: self.shown(), source })?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(WAIT_MAX))?;
        stream.set_write_timeout(Some(WAIT_MAX))?;
        if self.protocol == Protocol::Http {
            return Ok(Session::Http(http::Session::new(stream)));
        }
        let mut session = resp::Session::new(stream);
        if !self.credentials.is_empty() {
            let words: Vec<&str> =
                ["AUTH"].into_iter().chain(self.credentials.iter().map(String::as_str)).collect();
            session.command(&words).context("the server refused the credentials")?;
        }
        Ok(Session::Resp(session))
    }
}

/// `user:password`, `:password` or `password`.
fn parse_credentials(text: &str) -> Vec<String> {
    match text.split_once(':') {
        Some(("", password)) => vec![password.to_string()],
        Some((user, password)) => vec![user.to_string(), password.to_string()],
        None => vec![text.to_string()],
    }
}

/// A connection on which one question is asked and its answer awaited.
pub enum Session {
    /// In the Redis protocol.
    Resp(resp::Session),
    /// Over HTTP.
    Http(http::Session),
}

impl Session {
    /// A number that the server tells of itself, such as `process_id`, in `INFO` or `/metrics`. Servers that do not
    /// tell, or understand neither, have none.
    pub fn fact(&mut self, name: &str) -> Option<u64> {
        match self {
            Session::Resp(session) => session.info_number(name),
            Session::Http(session) => session.metric(name),
        }
        .unwrap_or(None)
    }

    /// The sum of the keys `from..to`; a missing key counts nothing.
    pub fn sum_of_range(&mut self, key_format: &KeyFormat, from: u64, to: u64) -> Result<i128> {
        match self {
            Session::Resp(session) => session.sum_of_range(key_format, from, to),
            Session::Http(session) => session.sum_of_range(key_format, from, to),
        }
    }

    /// Gives the connection to an event loop.
    pub fn into_nonblocking(self) -> Result<mio::net::TcpStream> {
        let stream = match self {
            Session::Resp(session) => session.into_stream(),
            Session::Http(session) => session.into_stream(),
        };
        stream.set_nonblocking(true)?;
        Ok(mio::net::TcpStream::from_std(stream))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_addresses_with_optional_credentials() {
        let cases: &[(&str, &str, &[&str])] = &[
            ("resp://127.0.0.1:6379", "resp://127.0.0.1:6379", &[]),
            ("redis://127.0.0.1:6379/", "resp://127.0.0.1:6379", &[]),
            ("127.0.0.1", "resp://127.0.0.1:7071", &[]),
            ("resp://[::1]:7071", "resp://[::1]:7071", &[]),
            ("resp://:secret@127.0.0.1:1", "resp://127.0.0.1:1", &["secret"]),
            ("resp://me:p@ss@127.0.0.1:1", "resp://127.0.0.1:1", &["me", "p@ss"]),
            ("http://127.0.0.1", "http://127.0.0.1:7070", &[]),
            ("http://127.0.0.1:80/", "http://127.0.0.1:80", &[]),
        ];
        for (text, shown, credentials) in cases {
            let target = Target::parse(text).unwrap();
            assert_eq!(target.shown(), *shown, "{text}");
            assert_eq!(target.credentials, *credentials, "{text}");
        }
        for bad in
            ["https://127.0.0.1:7070", "resp://", "resp://no such host:1", "http://me:secret@127.0.0.1:1"]
        {
            assert!(Target::parse(bad).is_err(), "{bad}");
        }
    }
}
