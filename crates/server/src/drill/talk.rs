//! A connection that speaks just enough RESP, one command at a time.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Result, bail};

/// How long to wait for a connection, and for one answer unless more patience was asked for.
const CONNECT_MAX: Duration = Duration::from_secs(2);
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// A connection.
pub struct Talk {
    stream: BufReader<TcpStream>,
    command: Vec<u8>,
}

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Integer(i64),
    Text(String),
    /// A refusal; the connection goes on.
    Error(String),
    Nothing,
    Array(Vec<Reply>),
}

impl Talk {
    pub fn open(address: SocketAddr) -> Result<Talk> {
        Talk::over(TcpStream::connect_timeout(&address, CONNECT_MAX)?)
    }

    /// On a connection that there is.
    pub fn over(stream: TcpStream) -> Result<Talk> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        Ok(Talk { stream: BufReader::with_capacity(1 << 14, stream), command: Vec::new() })
    }

    /// From now on one answer may take so long.
    pub fn set_patience(&mut self, patience: Duration) -> Result<()> {
        Ok(self.stream.get_ref().set_read_timeout(Some(patience))?)
    }

    /// Sends one command and reads what is answered.
    pub fn ask(&mut self, words: &[&str]) -> Result<Reply> {
        self.send(words)?;
        self.hear()
    }

    /// Sends one command.
    pub fn send(&mut self, words: &[&str]) -> Result<()> {
        self.command.clear();
        write!(self.command, "*{}\r\n", words.len())?;
        for word in words {
            write!(self.command, "${}\r\n{word}\r\n", word.len())?;
        }
        Ok(self.stream.get_mut().write_all(&self.command)?)
    }

    /// Reads one answer.
    pub fn hear(&mut self) -> Result<Reply> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let Some((kind, rest)) = line.trim_end().split_at_checked(1) else { bail!("the connection ended") };
        match kind {
            ":" => Ok(Reply::Integer(rest.parse()?)),
            "+" => Ok(Reply::Text(rest.to_string())),
            "-" => Ok(Reply::Error(rest.to_string())),
            "$" | "*" if rest == "-1" => Ok(Reply::Nothing),
            "_" => Ok(Reply::Nothing),
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>()? + 2];
                self.stream.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                Ok(Reply::Text(String::from_utf8_lossy(&bytes).into_owned()))
            }
            "*" => Ok(Reply::Array((0..rest.parse::<usize>()?).map(|_| self.hear()).collect::<Result<_>>()?)),
            _ => bail!("it answered {line:?}"),
        }
    }

    /// The text that answers a command.
    pub fn text(&mut self, words: &[&str]) -> Result<String> {
        match self.ask(words)? {
            Reply::Text(text) => Ok(text),
            other => bail!("{words:?} answered {other:?}"),
        }
    }

    /// The number that answers a command.
    pub fn number(&mut self, words: &[&str]) -> Result<i64> {
        match self.ask(words)? {
            Reply::Integer(number) => Ok(number),
            Reply::Text(text) => Ok(text.parse()?),
            other => bail!("{words:?} answered {other:?}"),
        }
    }
}
