//! Whatever bytes a record of the log, or a stored counter, holds: no panic.

#![no_main]

use libfuzzer_sys::fuzz_target;
use quipu_counting::Unique;
use quipu_wire::entry::{Reader, put_cell, sections};

fuzz_target!(|data: &[u8]| {
    for section in sections(data).flatten() {
        section.effects().for_each(|effect| { let _ = effect; });
    }
    if let Ok(cell) = Reader::new(data).cell() {
        let mut bytes = Vec::new();
        put_cell(&mut bytes, &cell);
        assert_eq!(Reader::new(&bytes).cell(), Ok(cell));
    }
    let _ = Reader::new(data).remembered_value(7);
    let _ = Reader::new(data).session();
    let _ = Reader::new(data).policy();
    if let Some(mut unique) = Unique::read(data) {
        let mut bytes = Vec::new();
        unique.put(&mut bytes);
        assert_eq!(bytes, data);
        assert_eq!(Unique::from_redis(&unique.to_redis()).map(|copy| copy.estimate()), Ok(unique.estimate()));
        for hash in data.as_chunks().0 {
            unique.observe(u64::from_le_bytes(*hash));
        }
    }
});
