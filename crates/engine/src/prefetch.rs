//! Telling the processor what will be needed. One of the few places with `unsafe`.
//!
//! Every table is bound by cache misses: a pipeline of 64 random keys costs 64 misses one after the other
//! unless they are under way together.

#![allow(unsafe_code)]

/// Starts loading the cache line of `place`. A hint: never faults, changes nothing.
#[inline(always)]
pub fn prefetch<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetch has no effect that the program can observe, for any address; SSE is part of x86_64.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
