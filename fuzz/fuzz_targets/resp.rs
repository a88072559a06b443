//! Whatever bytes arrive on the RESP port, or come back from a server: no panic, and the two readers of replies agree.

#![no_main]

use libfuzzer_sys::fuzz_target;
use quipu_wire::resp::decode::fuzz_decode;
use quipu_wire::resp::reply::{ReplyDecoder, skip_reply};

fuzz_target!(|data: &[u8]| {
    fuzz_decode(data);
    let skipped = skip_reply(data);
    let decoded = ReplyDecoder::new().decode(data);
    match (skipped, decoded) {
        (Ok(Some(skipped)), Ok(Some((_, taken)))) => assert_eq!(skipped, taken),
        (Ok(None), Ok(None)) | (Err(_), Err(_)) => {}
        (skipped, decoded) => panic!("one reader says {skipped:?}, the other {decoded:?}"),
    }
});
