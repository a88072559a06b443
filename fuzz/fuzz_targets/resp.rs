//! Whatever bytes arrive on the RESP port, or come back from a server: no panic, and the skipper of replies agrees
//! with the decoder.

#![no_main]

use libfuzzer_sys::fuzz_target;
use quipu_wire::resp::decode::fuzz_decode;
use quipu_wire::resp::reply::{ReplyDecoder, skip_reply};

fuzz_target!(|data: &[u8]| {
    fuzz_decode(data);
    // The skipper reads frames only, the decoder also what is in them.
    if let Ok(Some((_, taken))) = ReplyDecoder::new().decode(data) {
        assert_eq!(skip_reply(data).ok().flatten(), Some(taken));
    } else {
        let _ = skip_reply(data);
    }
});
