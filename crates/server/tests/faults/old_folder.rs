//! Faults of the files of a folder that was in use, mostly for a while: part of it in the log, part only in the cold
//! store. Files with a byte changed, of a newer format, missing: the start is refused and changes nothing, and with the fault
//! undone everything is there.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::ledger::{Connection, Ledger};
use crate::scene::{assert_refused, entries, flip, log_end, snapshot};
use crate::support::{Server, run};

/// So little memory that most counters lie on disk.
const ARGUMENTS: &[&str] = &["--memory", "32MiB"];

/// Counters created together.
const PIPELINE: usize = 1_000;

/// Counters of which every value is known.
struct OldFolder {
    folder: tempfile::TempDir,
    ledger: Ledger,
    /// Counters created beside those of the ledger, each of value 1.
    fillers: usize,
}

impl OldFolder {
    /// Counts until the first segment of the log is free: what stood in it is in the cold store now and nowhere else.
    fn new() -> OldFolder {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let server = Server::start_with(&data, ARGUMENTS);
        let mut connection = Connection::open(server.resp).unwrap();
        let mut ledger = Ledger::default();
        ledger.count(&mut connection, 200).unwrap();
        let mut fillers = 0;
        while data.join("log/000000000001.log").exists() {
            for number in fillers..fillers + PIPELINE {
                connection.send(&["INCR", &filler(number)]).unwrap();
            }
            for _ in 0..PIPELINE {
                assert_eq!(connection.reply().unwrap(), "1");
            }
            fillers += PIPELINE;
        }
        ledger.count(&mut connection, 200).unwrap();
        let (status, log) = server.terminate();
        assert!(status.success(), "{log:?}");
        OldFolder { folder, ledger, fillers }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }
}

/// Long names fill the log fast.
fn filler(number: usize) -> String {
    format!("{number:0480}")
}

/// What is done to a folder, and undone.
enum Fault {
    Flip(PathBuf, u64),
    Write(PathBuf, u64, Vec<u8>),
    Remove(Vec<PathBuf>),
}

impl Fault {
    /// Commits it, calls, and undoes it.
    fn during(&self, aside: &Path, action: impl FnOnce()) {
        match self {
            Fault::Flip(path, position) => {
                flip(path, *position);
                action();
                flip(path, *position);
            }
            Fault::Write(path, position, bytes) => {
                let file = fs::File::options().read(true).write(true).open(path).unwrap();
                let mut before = vec![0; bytes.len()];
                file.read_exact_at(&mut before, *position).unwrap();
                file.write_all_at(bytes, *position).unwrap();
                action();
                file.write_all_at(&before, *position).unwrap();
            }
            Fault::Remove(paths) => {
                fs::create_dir_all(aside).unwrap();
                let place = |index: usize| aside.join(index.to_string());
                paths.iter().enumerate().for_each(|(index, path)| fs::rename(path, place(index)).unwrap());
                action();
                for (index, path) in paths.iter().enumerate() {
                    // A folder may be back, with nothing but a lock in it.
                    let _ = fs::remove_dir_all(path);
                    fs::rename(place(index), path).unwrap();
                }
            }
        }
    }
}

/// The first bytes of a file with another version, and the checksum that goes with it.
fn newer(path: &Path, version_at: usize, checksum_at: Option<usize>) -> Fault {
    let mut bytes = fs::read(path).unwrap();
    bytes.truncate(checksum_at.map_or(version_at + 1, |at| at + 4));
    bytes[version_at] += 1;
    if let Some(at) = checksum_at {
        let checksum = crc32(&bytes[..at]);
        bytes[at..].copy_from_slice(&checksum.to_le_bytes());
    }
    Fault::Write(path.to_path_buf(), 0, bytes)
}

/// The checksum of the formats, bit by bit: a newer version would have a right one.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    })
}

/// Every fault that must keep the server from starting, with words that its message must have.
fn faults(data: &Path) -> Vec<(&'static str, Fault, Vec<String>)> {
    let words = |words: &[&str]| words.iter().map(|word| word.to_string()).collect::<Vec<_>>();
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_string();
    let meta = data.join("quipu.meta");
    let (segment, end) = log_end(data);
    let middle = (end / 2).next_multiple_of(8) + 1;
    let segments = entries(&data.join("log"), ".log");
    let from_segment: Vec<_> = segments.iter().filter(|path| **path >= segment).cloned().collect();
    let marker = entries(&data.join("log"), ".newest");
    let (cold, format) = (data.join("cold"), data.join("cold/FORMAT"));
    let spaces = entries(&cold.join("spaces"), "");
    let ids = spaces.iter().find(|path| name(path).starts_with("ids-")).unwrap();
    let partition = spaces.iter().find(|path| name(path).starts_with('p')).unwrap();
    let tables = entries(&partition.join("tables"), "");
    let manifest = entries(partition, "").into_iter().find(|path| name(path).starts_with('v')).unwrap();
    let backup = "backup";
    let version = "version of quipu that wrote it";
    vec![
        ("meta: a byte", Fault::Flip(meta.clone(), 30), words(&["quipu.meta", "checksum", backup])),
        ("meta: newer", newer(&meta, 8, None), words(&["format 3", "reads 2", version])),
        ("meta: missing", Fault::Remove(vec![meta]), words(&["quipu.meta is missing", backup])),
        ("log: a byte", Fault::Flip(segment.clone(), middle), words(&[&name(&segment), "byte ", backup])),
        ("log: a byte of the header", Fault::Flip(segment.clone(), 20), words(&[&name(&segment), backup])),
        ("log: newer", newer(&segment, 8, Some(60)), words(&[&name(&segment), "version 2", version])),
        ("log: segment missing", Fault::Remove(vec![segment.clone()]), words(&["missing", backup])),
        ("log: end missing", Fault::Remove(from_segment), words(&["missing", backup])),
        ("log: segments missing", Fault::Remove(segments), words(&["missing", backup])),
        ("log: marker missing", Fault::Remove(marker), words(&["newest", "missing", backup])),
        ("log: missing", Fault::Remove(vec![data.join("log")]), words(&["the log is not there", backup])),
        ("cold: missing", Fault::Remove(vec![cold.clone()]), words(&["cold", "missing", backup])),
        ("cold: marker missing", Fault::Remove(vec![format.clone()]), words(&["cold", "missing", backup])),
        ("cold: marker: a byte", Fault::Flip(format.clone(), 13), words(&["FORMAT", "damaged", backup])),
        ("cold: newer", newer(&format, 8, Some(12)), words(&["FORMAT", "version 2", version])),
        (
            "cold: spaces missing",
            Fault::Remove(vec![cold.join("spaces")]),
            words(&["spaces", "damaged", backup]),
        ),
        ("cold: all spaces missing", Fault::Remove(spaces.clone()), words(&["missing", backup])),
        ("cold: partition missing", Fault::Remove(vec![partition.clone()]), words(&["missing", backup])),
        ("cold: request ids missing", Fault::Remove(vec![ids.clone()]), words(&["missing", backup])),
        ("cold: tables missing", Fault::Remove(vec![partition.join("tables")]), words(&["damaged", backup])),
        ("cold: table missing", Fault::Remove(tables[..1].to_vec()), words(&["damaged", backup])),
        (
            "cold: current missing",
            Fault::Remove(vec![partition.join("current")]),
            words(&["current", backup]),
        ),
        (
            "cold: manifest: a byte",
            Fault::Flip(manifest.clone(), 40),
            words(&["checksum", "damaged", backup]),
        ),
        ("cold: manifest missing", Fault::Remove(vec![manifest]), words(&["damaged", backup])),
    ]
}

#[test]
fn a_folder_with_a_fault_is_refused_and_left_alone_and_without_it_everything_is_there() {
    let mut old = OldFolder::new();
    let data = old.data();
    for (what, fault, words) in faults(&data) {
        println!("-- {what}");
        fault.during(&old.folder.path().join("aside"), || {
            let before = snapshot(&data);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            assert_refused(&data, ARGUMENTS, 1, &words);
            assert!(snapshot(&data) == before, "{what}: the folder was changed");
        });
    }
    assert_tables_never_lie(&mut old);
    old.ledger.prove_by_restart(&data, ARGUMENTS);
}

/// Everything is in the log and nothing in the cold store yet: nobody but the folder itself knows that there was a log.
#[test]
fn a_young_folder_misses_its_parts_too() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut ledger = Ledger::default();
    let server = Server::start(&data);
    ledger.count(&mut Connection::open(server.resp).unwrap(), 100).unwrap();
    server.kill();
    let segments = entries(&data.join("log"), ".log");
    let in_log: Vec<_> = entries(&data.join("log"), "");
    let rows = [
        (Fault::Remove(vec![data.join("log")]), "the log is not there"),
        (Fault::Remove(in_log), "the log is not there"),
        (Fault::Remove(segments[..1].to_vec()), "missing"),
        (Fault::Remove(segments), "missing"),
        (Fault::Remove(vec![data.join("cold")]), "missing"),
        (Fault::Remove(vec![data.join("quipu.meta")]), "quipu.meta is missing"),
        (Fault::Flip(data.join("log/000000000001.log"), 700), "000000000001.log, byte "),
    ];
    for (fault, word) in rows {
        fault.during(&folder.path().join("aside"), || assert_refused(&data, &[], 1, &[word, "backup"]));
    }
    ledger.prove_by_restart(&data, &[]);
}

/// A byte of a table is changed, at several places: the start or the check of the folder tells, and whatever a server
/// answers meanwhile is right or an error.
fn assert_tables_never_lie(old: &mut OldFolder) {
    const PLACES: u64 = 6;
    let data = old.data();
    let folders = entries(&data.join("cold/spaces"), "");
    let tables = folders.iter().flat_map(|space| entries(&space.join("tables"), ""));
    let length = |path: &PathBuf| fs::metadata(path).unwrap().len();
    let table = tables.max_by_key(length).unwrap();
    let mut refused_requests = 0;
    for place in 0..PLACES {
        let position = length(&table) * place / PLACES + 100;
        Fault::Flip(table.clone(), position).during(old.folder.path(), || {
            let check = run(&["check", data.to_str().unwrap()], &[]);
            let said = String::from_utf8_lossy(&check.stderr);
            println!("byte {position}: {said}");
            assert!(check.status.code() == Some(14) && said.contains("damaged"), "byte {position}: {said}");
            if place == PLACES / 2 {
                refused_requests += read_all(&data, old.fillers);
            }
        });
    }
    assert!(refused_requests > 0, "a server never noticed");
}

/// Reads every counter; returns how many reads were refused. All others must be right.
fn read_all(data: &Path, fillers: usize) -> usize {
    let server = Server::start_with(data, ARGUMENTS);
    let read = |numbers: &[usize]| -> Result<(), String> {
        let mut connection = Connection::open(server.resp).unwrap();
        numbers.iter().try_for_each(|number| connection.send(&["GET", &filler(*number)]))?;
        numbers
            .iter()
            .try_for_each(|number| connection.reply().map(|value| assert_eq!(value, "1", "filler {number}")))
    };
    let numbers: Vec<usize> = (0..fillers).collect();
    // What is sent together is refused together: look closer there.
    let refused = numbers.chunks(100).filter(|chunk| read(chunk).is_err());
    let refusals: Vec<String> = refused.flatten().filter_map(|number| read(&[*number]).err()).collect();
    println!("{:?}", refusals.first());
    for refusal in &refusals {
        assert!(refusal.contains("damaged") && refusal.contains("backup"), "{refusal}");
    }
    refusals.len()
}
