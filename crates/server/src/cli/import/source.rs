//! What is imported: a file or stdin, plain or compressed, of a format that shows itself.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read, Seek};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use indicatif::ProgressBar;
use xxhash_rust::xxh3::Xxh3;

use super::rows::{BadRow, Rows};
use crate::cli::export::Format;
use crate::cli::interrupt::Interrupt;

/// What is read at once.
const BUFFER_BYTES: usize = 256 * 1024;
/// What is looked at to find out what it is.
const HEAD_BYTES: u64 = 4 * 1024;
const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A file, or stdin.
pub struct Source {
    path: PathBuf,
    /// `None` is stdin.
    file: Option<File>,
    /// Of a file that can be read more than once.
    length: Option<u64>,
}

impl Source {
    /// Opens a file; `-` is stdin.
    pub fn open(path: &Path) -> io::Result<Source> {
        if path == Path::new("-") {
            return Ok(Source { path: path.to_owned(), file: None, length: None });
        }
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Err(io::Error::other("it is a folder"));
        }
        // Pipes and devices give their bytes once.
        let length = metadata.is_file().then_some(metadata.len());
        Ok(Source { path: path.to_owned(), file: Some(file), length })
    }

    /// Its length, if it can be read more than once.
    pub fn length(&self) -> Option<u64> {
        self.length
    }

    /// A number that is the same for the same bytes, wherever they lie.
    pub fn identity(&mut self, interrupt: &Interrupt) -> io::Result<u128> {
        let mut hash = Xxh3::new();
        let mut input = self.raw(interrupt)?;
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            match input.read(&mut buffer)? {
                0 => return Ok(hash.digest128()),
                count => hash.update(&buffer[..count]),
            }
        }
    }

    /// The rows from the first on, and their format. `bar` follows the bytes as they lie in the file.
    pub fn rows(
        &mut self,
        format: Option<Format>,
        bar: &ProgressBar,
        interrupt: &Interrupt,
    ) -> io::Result<(Format, Result<Rows, BadRow>)> {
        let (mut head, mut input) = peek(Box::new(bar.wrap_read(self.raw(interrupt)?)))?;
        if head.starts_with(GZIP_MAGIC) {
            (head, input) = peek(Box::new(MultiGzDecoder::new(Cursor::new(head).chain(input))))?;
        }
        if head.starts_with(BYTE_ORDER_MARK) {
            head.drain(..BYTE_ORDER_MARK.len());
        }
        let format = format.or_else(|| Format::of_name(&self.path)).unwrap_or_else(|| detect(&head));
        let input = Cursor::new(head).chain(BufReader::with_capacity(BUFFER_BYTES, input));
        Ok((format, Rows::new(format, Box::new(input))?))
    }

    fn raw(&mut self, interrupt: &Interrupt) -> io::Result<Box<dyn Read>> {
        match &mut self.file {
            None => Ok(Box::new(interrupt.guard(io::stdin()))),
            Some(file) if self.length.is_none() => Ok(Box::new(interrupt.guard(file.try_clone()?))),
            Some(file) => {
                file.rewind()?;
                Ok(Box::new(file.try_clone()?))
            }
        }
    }
}

/// The first bytes, and the input without them.
fn peek(mut input: Box<dyn Read>) -> io::Result<(Vec<u8>, Box<dyn Read>)> {
    let mut head = Vec::new();
    (&mut input).take(HEAD_BYTES).read_to_end(&mut head)?;
    Ok((head, input))
}

/// Objects begin with a brace, which no header does.
fn detect(head: &[u8]) -> Format {
    if head.trim_ascii_start().first() == Some(&b'{') { Format::Ndjson } else { Format::Csv }
}
