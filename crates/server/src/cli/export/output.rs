//! Where rows go: stdout, or a file that appears whole or not at all.

use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use tempfile::NamedTempFile;

/// What is written, compressed where the name says so.
pub enum Output {
    /// As it is.
    Plain(Place),
    /// As gzip.
    Compressed(GzEncoder<Place>),
}

/// Where the bytes arrive.
pub struct Place {
    kind: Kind,
    bytes: u64,
}

enum Kind {
    Stdout(std::io::Stdout),
    /// A device or a pipe: nothing can be moved to its place.
    Stream(File),
    /// Under another name beside its place until it is whole; removed when it does not come to that.
    File {
        file: NamedTempFile,
        place: PathBuf,
    },
}

impl Output {
    /// Nothing appears at `place` yet.
    pub fn create(place: Option<&Path>) -> std::io::Result<Output> {
        let compressed =
            place.and_then(Path::extension).is_some_and(|ending| ending.eq_ignore_ascii_case("gz"));
        let place = Place { kind: Kind::create(place)?, bytes: 0 };
        Ok(match compressed {
            true => Output::Compressed(GzEncoder::new(place, Compression::default())),
            false => Output::Plain(place),
        })
    }

    /// Everything was written: the file gets its name. Returns its length.
    pub fn finish(self) -> std::io::Result<u64> {
        let mut place = match self {
            Output::Plain(place) => place,
            Output::Compressed(encoder) => encoder.finish()?,
        };
        place.flush()?;
        if let Kind::File { file, place } = place.kind {
            file.as_file().sync_all()?;
            file.persist(&place)?;
            // The name is as durable as the bytes only when its folder is, too.
            File::open(folder(&place))?.sync_all()?;
        }
        Ok(place.bytes)
    }
}

impl Kind {
    fn create(place: Option<&Path>) -> std::io::Result<Kind> {
        let Some(place) = place else { return Ok(Kind::Stdout(std::io::stdout())) };
        if std::fs::metadata(place).is_ok_and(|found| !found.is_file()) {
            return Ok(Kind::Stream(File::options().write(true).open(place)?));
        }
        // As readable as any new file; the library makes private ones.
        let file = tempfile::Builder::new()
            .prefix(".quipu-export-")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder(place))?;
        Ok(Kind::File { file, place: place.to_owned() })
    }
}

fn folder(place: &Path) -> &Path {
    match place.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

impl Write for Place {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = match &mut self.kind {
            Kind::Stdout(stdout) => stdout.write(bytes),
            Kind::Stream(stream) => stream.write(bytes),
            Kind::File { file, .. } => file.write(bytes),
        }?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match &mut self.kind {
            Kind::Stdout(stdout) => stdout.flush(),
            Kind::Stream(stream) => stream.flush(),
            Kind::File { file, .. } => file.flush(),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Output::Plain(place) => place.write(bytes),
            Output::Compressed(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Output::Plain(place) => place.flush(),
            Output::Compressed(encoder) => encoder.flush(),
        }
    }
}
