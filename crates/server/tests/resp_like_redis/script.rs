//! A conversation as data: who says what in which order. It prints as lines that can be typed again.

use std::fmt::{self, Display, Formatter};

use quipu_wire::resp::encode_command;

/// One argument.
pub type Word = Vec<u8>;

/// The longest word that is shown whole; keys of kilobytes say nothing by their middle.
const SHOWN_BYTES_MAX: usize = 80;

/// One thing a connection does. The next step begins when this one is answered.
#[derive(Clone, Debug)]
pub struct Step {
    /// Which connection; they are opened when they are first used.
    pub connection: usize,
    /// What it does.
    pub act: Act,
}

/// What a connection does.
#[derive(Clone, Debug)]
pub enum Act {
    /// Sends a command as libraries do.
    Ask(Vec<Word>),
    /// Sends a command as a line, as people do.
    Type(Vec<Word>),
    /// Walks through all keys: SCAN with these options until the cursor is 0 again.
    Walk(Vec<Word>),
    /// Sends bytes that need not be commands in pieces, says that it sends no more, and listens until the end.
    Pour(Vec<Vec<u8>>),
}

impl Step {
    /// The words of the command, as far as there is one.
    pub fn words(&self) -> &[Word] {
        match &self.act {
            Act::Ask(words) | Act::Type(words) | Act::Walk(words) => words,
            Act::Pour(_) => &[],
        }
    }

    /// The bytes of the command; a walk has more than one.
    pub fn bytes(&self) -> Vec<u8> {
        match &self.act {
            Act::Ask(words) | Act::Walk(words) => frame(words),
            Act::Type(words) => line(words),
            Act::Pour(pieces) => pieces.concat(),
        }
    }
}

/// A command as libraries send it.
pub fn frame(words: &[Word]) -> Vec<u8> {
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    let mut bytes = Vec::new();
    encode_command(&mut bytes, &words);
    bytes
}

/// A command as people type it. Words without anything special stand as they are.
pub fn line(words: &[Word]) -> Vec<u8> {
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    let mut bytes = words.join(" ").into_bytes();
    bytes.extend_from_slice(b"\r\n");
    bytes
}

/// A word as it can be typed.
fn quoted(word: &[u8]) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\');
    if !word.is_empty() && word.iter().all(is_plain) {
        return String::from_utf8_lossy(word).into_owned();
    }
    let mut text = String::from("\"");
    for byte in word {
        match byte {
            b'"' | b'\\' => text.extend(['\\', char::from(*byte)]),
            b' '..=b'~' => text.push(char::from(*byte)),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text + "\""
}

fn shown(word: &[u8]) -> String {
    match word.len() {
        0..=SHOWN_BYTES_MAX => quoted(word),
        length => format!("{}...({length} bytes)", quoted(&word[..SHOWN_BYTES_MAX / 4])),
    }
}

/// A command for people.
pub fn words_shown(words: &[Word]) -> String {
    let words: Vec<String> = words.iter().map(|word| shown(word)).collect();
    words.join(" ")
}

impl Display for Step {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let words = words_shown(self.words());
        match &self.act {
            Act::Ask(_) => write!(formatter, "{}> {words}", self.connection),
            Act::Type(_) => write!(formatter, "{}> (typed) {words}", self.connection),
            Act::Walk(_) => write!(formatter, "{}> (all of) {words}", self.connection),
            Act::Pour(pieces) => {
                let pieces: Vec<String> =
                    pieces.iter().map(|piece| piece.escape_ascii().to_string()).collect();
                write!(formatter, "{}> (bytes) {}", self.connection, pieces.join(" + "))
            }
        }
    }
}

/// A script for people.
pub fn show(script: &[Step]) -> String {
    script.iter().map(|step| format!("    {step}\n")).collect()
}
