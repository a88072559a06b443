//! The way back: which segments are there, which records they hold, and whether what ends them is a torn tail
//! or damage.
//!
//! Reading stops at the first place X that holds no valid frame. Either the writing was interrupted there,
//! and nobody was ever told that it succeeded: a torn tail, which is cut off. Or it was durable once and is
//! not readable any more: damage, and the start is refused. The difference is told by witnesses, each of
//! which says that everything before some offset beyond X was durable:
//!
//! - a valid frame header further on in the segment, by its `durable_offset`;
//! - a later segment: its header was written after everything before it was synced;
//! - a frame in a segment whose own header is bad: headers are synced before frames follow;
//! - the marker `.newest`: every segment up to its number was there;
//! - the caller, by the offset `from`, which it has from a checkpoint.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::frame::{self, FRAME_ALIGN_BYTES, FRAME_HEADER_BYTES, RECORD_PREFIX_BYTES, SegmentBytes};
use super::pool::{Live, Pool};
use super::segment::{
    HeaderState, Role, SEGMENT_HEADER_BYTES, Segment, decode_header, encode_header, file_path, parse_name,
};
use super::{LogError, LogOptions};
use crate::disk::{Disk, DiskFile};

/// The first segment of a log.
const FIRST_NUMBER: u64 = 1;

/// What [`Log::open`](super::Log::open) shows its caller.
#[derive(Clone, Copy, Debug)]
pub enum Visit<'a> {
    /// A segment begins.
    Segment {
        /// Its number.
        number: u64,
        /// The offset of its first byte.
        base: u64,
    },
    /// The next record.
    Record {
        /// Where it begins.
        start: u64,
        /// Where it ends: what `append` returned for it.
        end: u64,
        /// Its bytes.
        payload: &'a [u8],
    },
    /// That was all of a log that was there already. Nothing has been changed so far: an error leaves it as it is.
    End,
}

/// What was found at the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Segments read.
    pub segments: u64,
    /// Records shown.
    pub records: u64,
    /// The offset where frames that were written in part were cut off.
    pub torn_at: Option<u64>,
}

/// A log ready to go on.
pub(super) struct Recovered {
    pub(super) active: Arc<Segment>,
    pub(super) base: u64,
    pub(super) end: u64,
    pub(super) pool: Pool,
    pub(super) report: Recovery,
}

/// A `.log` file as it lies there.
struct Found {
    number: u64,
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    header: HeaderState,
}

impl Found {
    fn live(&self) -> Option<(&Found, u64)> {
        match self.header {
            HeaderState::Live { base, .. } => Some((self, base)),
            HeaderState::Blank => None,
        }
    }
}

/// Takes the lock of the folder.
pub(super) fn lock(disk: &dyn Disk, dir: &Path) -> Result<Arc<dyn DiskFile>, LogError> {
    let path = dir.join("lock");
    let opened = match disk.open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => disk.create(&path),
        result => result,
    };
    let file = opened.map_err(LogError::io("open", &path))?;
    if file.try_lock().map_err(LogError::io("lock", &path))? {
        Ok(file)
    } else {
        Err(LogError::Locked(dir.to_path_buf()))
    }
}

/// Reads the log from the segment that contains `from`, and makes it ready to go on.
pub(super) fn recover(
    disk: Arc<dyn Disk>,
    dir: &Path,
    options: &LogOptions,
    from: u64,
    visit: &mut dyn FnMut(Visit<'_>) -> Result<(), LogError>,
) -> Result<Recovered, LogError> {
    let Survey { mut found, spares, newest } = survey(&*disk, dir)?;
    check_newest(dir, &found, newest)?;
    let live = arrange(&*disk, dir, &mut found, from)?;
    let mut pool = Pool::new(disk.clone(), dir, options, live, spares, newest);
    let mut reading = Reading { from, visit, buffer: Vec::new(), report: Recovery::default() };
    let segments: Vec<(&Found, u64)> = found.iter().filter_map(Found::live).collect();
    let (active, base, end) = match segments.split_last() {
        None => begin(dir, &mut pool, &found, &mut reading)?,
        Some((last, sealed)) => {
            let (active, end) = reading.read_all(sealed, *last)?;
            // Downwards, so that no moment has a gap between the numbers.
            for blank in found.iter().rev().filter(|file| file.number > active.number) {
                reading.examine_blank(&mut pool, blank, end)?;
            }
            (Arc::new(active), last.1, end)
        }
    };
    // Whoever was killed between a rename and its sync left names that are seen but not certain.
    pool.sync_dir()?;
    pool.mark_newest(pool.newest_file())?;
    Ok(Recovered { active, base, end, pool, report: reading.report })
}

/// The files as they lie there.
struct Survey {
    /// In order of their numbers.
    found: Vec<Found>,
    spares: Vec<PathBuf>,
    /// What the marker says.
    newest: Option<u64>,
}

/// Lists the files; removes those that were never finished.
fn survey(disk: &dyn Disk, dir: &Path) -> Result<Survey, LogError> {
    let mut found = Vec::new();
    let mut spares = Vec::new();
    let mut newest = None;
    for name in disk.list(dir).map_err(LogError::io("list", dir))? {
        let path = dir.join(&name);
        match parse_name(&name) {
            None => {}
            Some((_, Role::New)) => disk.remove(&path).map_err(LogError::io("remove", &path))?,
            Some((_, Role::Spare)) => spares.push(path),
            Some((number, Role::Newest)) => newest = newest.max(Some(number)),
            Some((number, Role::Log)) => {
                let file = disk.open(&path).map_err(LogError::io("open", &path))?;
                let mut header = [0; SEGMENT_HEADER_BYTES];
                let length = file.read_at(&mut header, 0).map_err(LogError::io("read", &path))?;
                let header = decode_header(&header[..length], number, &path)?;
                check_length(&*file, &path, header)?;
                found.push(Found { number, path, file, header });
            }
        }
    }
    found.sort_by_key(|found| found.number);
    Ok(Survey { found, spares, newest })
}

/// A file in use never changes its length, so one that is shorter than its header says was cut by somebody else, and
/// nothing in it tells how much was in the rest.
fn check_length(file: &dyn DiskFile, path: &Path, header: HeaderState) -> Result<(), LogError> {
    let HeaderState::Live { capacity, .. } = header else { return Ok(()) };
    let length = file.len().map_err(LogError::io("read", path))?;
    if length >= capacity {
        return Ok(());
    }
    let what = format!("the file ends here, and had {capacity} bytes");
    Err(LogError::Damage { file: path.to_path_buf(), offset: length, what })
}

/// Every segment behind the last valid header up to the newest ever made must be there: where one is not, nothing
/// else would tell how much was in it.
fn check_newest(dir: &Path, found: &[Found], newest: Option<u64>) -> Result<(), LogError> {
    let last_live = found.iter().rev().find_map(|file| file.live().map(|_| file.number));
    let missing = |number: u64, role: Role, what: &str| {
        Err(LogError::Damage { file: file_path(dir, number, role), offset: 0, what: what.to_string() })
    };
    match (last_live, newest) {
        (Some(last), newest) if newest.is_none_or(|newest| newest < last) => {
            missing(last, Role::Newest, "the marker that tells which segments there are is missing")
        }
        (_, None) => Ok(()),
        (last, Some(newest)) => {
            let lowest = found.first().map_or(newest, |file| file.number);
            let first = last.map_or(lowest, |last| last + 1);
            let is_there = |number: &u64| found.binary_search_by_key(number, |file| file.number).is_ok();
            match (first..=newest).find(|number| !is_there(number)) {
                Some(number) => missing(number, Role::Log, "the segment is missing"),
                None => Ok(()),
            }
        }
    }
}

/// The segments in use: those with consecutive numbers up to the last valid header. What lies below a gap was
/// being freed, which `from` has to confirm.
fn arrange(
    disk: &dyn Disk,
    dir: &Path,
    found: &mut Vec<Found>,
    from: u64,
) -> Result<VecDeque<Live>, LogError> {
    let mut live: VecDeque<Live> = VecDeque::new();
    for file in found.iter().rev() {
        match (file.header, live.front()) {
            (HeaderState::Live { base, .. }, None) => live.push_front(Live { number: file.number, base }),
            (HeaderState::Live { base, .. }, Some(next)) if file.number + 1 == next.number => {
                live.push_front(Live { number: file.number, base });
            }
            (_, None) => {}
            (_, Some(_)) => break,
        }
    }
    let Some(first) = live.front().copied() else { return Ok(live) };
    if from < first.base {
        let what = format!("the segment before offset {} is missing or has no valid header", first.base);
        let file = file_path(dir, first.number - 1, Role::Log);
        return Err(LogError::Damage { file, offset: 0, what });
    }
    for leftover in found.extract_if(.., |file| file.number < first.number) {
        tracing::warn!("removing {}: it was being freed", leftover.path.display());
        disk.remove(&leftover.path).map_err(LogError::io("remove", &leftover.path))?;
    }
    Ok(live)
}

/// Begins a new log, unless the files say that there was one.
fn begin(
    dir: &Path,
    pool: &mut Pool,
    found: &[Found],
    reading: &mut Reading<'_>,
) -> Result<(Arc<Segment>, u64, u64), LogError> {
    let damage =
        |path: &Path, what: String| Err(LogError::Damage { file: path.to_path_buf(), offset: 0, what });
    // A start that was interrupted leaves the first file without a header, and nothing in it.
    for file in found {
        reading.load(file)?;
        let bytes = SegmentBytes { number: file.number, base: 0, bytes: &reading.buffer };
        if file.number != FIRST_NUMBER || bytes.find_header(SEGMENT_HEADER_BYTES).is_some() {
            return damage(
                &file.path,
                "no segment in use is there: it is missing, or its header is damaged".into(),
            );
        }
    }
    if reading.from > 0 {
        let what = format!("the log is not there, but offset {} was durable", reading.from);
        return damage(&file_path(dir, FIRST_NUMBER, Role::Log), what);
    }
    // Made anew, over the one that is there.
    let segment = pool.take_next()?;
    write_durably(&segment, &encode_header(segment.number, 0, segment.capacity), 0)?;
    pool.push_live(segment.number, 0);
    (reading.visit)(Visit::Segment { number: segment.number, base: 0 })?;
    Ok((segment, 0, SEGMENT_HEADER_BYTES as u64))
}

fn write_durably(segment: &Segment, bytes: &[u8], position: u64) -> Result<(), LogError> {
    segment.file.write_at(bytes, position).map_err(LogError::io("write", &segment.path))?;
    segment.file.sync_data().map_err(LogError::io("sync", &segment.path))
}

/// Reads segments one after the other through one buffer.
struct Reading<'a> {
    from: u64,
    visit: &'a mut dyn FnMut(Visit<'_>) -> Result<(), LogError>,
    buffer: Vec<u8>,
    report: Recovery,
}

/// Where the valid frames of a segment end.
struct End {
    position: usize,
    /// Why no frame follows.
    flaw: &'static str,
    /// The highest offset that the frames testify to.
    witnessed: u64,
}

impl Reading<'_> {
    fn load(&mut self, found: &Found) -> Result<(), LogError> {
        let length = found.file.len().map_err(LogError::io("measure", &found.path))?;
        self.buffer.resize(length as usize, 0);
        let read = found.file.read_at(&mut self.buffer, 0).map_err(LogError::io("read", &found.path))?;
        self.buffer.truncate(read);
        Ok(())
    }

    /// Reads the segments from the one that contains `from`, and returns the last one and the end of the log.
    fn read_all(
        &mut self,
        sealed: &[(&Found, u64)],
        last: (&Found, u64),
    ) -> Result<(Segment, u64), LogError> {
        let next_bases = sealed.iter().skip(1).map(|(_, base)| *base).chain([last.1]);
        for ((file, base), next_base) in sealed.iter().zip(next_bases) {
            if next_base > self.from {
                self.read_sealed(file, *base, next_base)?;
            }
        }
        self.read_last(last.0, last.1)
    }

    /// A segment that another follows: its frames reach to the next one's base, no less and no more.
    fn read_sealed(&mut self, found: &Found, base: u64, next_base: u64) -> Result<(), LogError> {
        self.load(found)?;
        let end = self.read_frames(found, base)?;
        if base + end.position as u64 == next_base {
            return Ok(());
        }
        let what = format!("{}; the next segment begins at offset {next_base}", end.flaw);
        Err(LogError::Damage { file: found.path.clone(), offset: end.position as u64, what })
    }

    /// The last segment in use: cuts a torn tail, and makes everything before it durable.
    fn read_last(&mut self, found: &Found, base: u64) -> Result<(Segment, u64), LogError> {
        self.load(found)?;
        let end = self.read_frames(found, base)?;
        let cut = base + end.position as u64;
        let damage = |witness: String| {
            let what = format!("{} at offset {cut}, but {witness}", end.flaw);
            LogError::Damage { file: found.path.clone(), offset: end.position as u64, what }
        };
        if self.from > cut {
            return Err(damage(format!("the caller knows offset {} to be durable", self.from)));
        }
        let bytes = SegmentBytes { number: found.number, base, bytes: &self.buffer };
        let mut remains_end = end.position;
        let mut position = end.position;
        while let Some((header_at, header)) = bytes.find_header(position) {
            if header.durable > cut {
                return Err(damage(format!(
                    "a frame at byte {header_at} knows {} to be durable",
                    header.durable
                )));
            }
            remains_end = header_at + FRAME_HEADER_BYTES;
            position = bytes.frame(header_at).map_or(header_at + FRAME_ALIGN_BYTES, |frame| frame.next);
        }
        if remains_end > end.position {
            tracing::warn!("{}: torn tail cut at offset {cut}", found.path.display());
            self.report.torn_at = Some(cut);
        }
        (self.visit)(Visit::End)?;
        let segment = Segment {
            number: found.number,
            path: found.path.clone(),
            file: found.file.clone(),
            capacity: self.buffer.len() as u64,
        };
        self.settle(&segment, base, &end, remains_end)?;
        Ok((segment, cut))
    }

    /// Makes what was read durable, and what was cut impossible to read.
    ///
    /// - What nobody testified to is written again before the sync: if the sync of an earlier life failed,
    ///   the operating system shows these bytes and believes them written, and a mere sync would do
    ///   nothing.
    /// - Remains of frames behind the cut are overwritten with zeros up to the last header that is still
    ///   valid: frames to come would have the same number and might end just where an old one begins, which
    ///   would then follow them as if it had been appended.
    fn settle(
        &mut self,
        segment: &Segment,
        base: u64,
        end: &End,
        remains_end: usize,
    ) -> Result<(), LogError> {
        self.buffer[end.position..remains_end].fill(0);
        let certain = end.witnessed.saturating_sub(base) as usize;
        write_durably(segment, &self.buffer[certain..remains_end], certain as u64)
    }

    /// A file behind the last segment: made ready and never used, or the last segment with its header
    /// damaged.
    fn examine_blank(&mut self, pool: &mut Pool, blank: &Found, end: u64) -> Result<(), LogError> {
        self.load(blank)?;
        let bytes = SegmentBytes { number: blank.number, base: end, bytes: &self.buffer };
        if let Some((position, _)) = bytes.find_header(SEGMENT_HEADER_BYTES) {
            let what = format!("the segment has no valid header, but a valid frame at byte {position}");
            return Err(LogError::Damage { file: blank.path.clone(), offset: 0, what });
        }
        pool.adopt(blank.number, &blank.path, blank.file.clone(), self.buffer.len() as u64)
    }

    /// Shows all records up to the first place without a valid frame.
    fn read_frames(&mut self, found: &Found, base: u64) -> Result<End, LogError> {
        (self.visit)(Visit::Segment { number: found.number, base })?;
        self.report.segments += 1;
        let bytes = SegmentBytes { number: found.number, base, bytes: &self.buffer };
        let mut end = End { position: SEGMENT_HEADER_BYTES, flaw: "", witnessed: base };
        loop {
            let frame = match bytes.frame(end.position) {
                Ok(frame) => frame,
                Err(flaw) => return Ok(End { flaw, ..end }),
            };
            for record in frame::records(frame.payload) {
                let Some((record_at, payload)) = record else {
                    let what = "a frame with a valid checksum holds no valid records".into();
                    let offset = end.position as u64;
                    return Err(LogError::Damage { file: found.path.clone(), offset, what });
                };
                let start = base + (frame.payload_at + record_at) as u64;
                let record_end = start + (RECORD_PREFIX_BYTES + payload.len()) as u64;
                (self.visit)(Visit::Record { start, end: record_end, payload })?;
                self.report.records += 1;
            }
            end.witnessed = end.witnessed.max(frame.durable);
            end.position = frame.next;
        }
    }
}
