//! A failing script made as short as it gets while it still fails.

use super::script::{Act, Step};

/// Leaves out steps, then words at the ends of commands, then bytes of streams.
pub fn shrink(script: Vec<Step>, mut fails: impl FnMut(&[Step]) -> bool) -> Vec<Step> {
    let mut script = leave_out(script, &mut fails);
    for at in 0..script.len() {
        while let Some(shorter) = with_fewer_words(&script, at)
            && fails(&shorter)
        {
            script = shorter;
        }
        if let Act::Pour(pieces) = &script[at].act {
            let with = |bytes: &[u8]| {
                let mut other = script.clone();
                other[at].act = Act::Pour(vec![bytes.to_vec()]);
                other
            };
            let bytes = pieces.concat();
            if fails(&with(&bytes)) {
                script = with(&leave_out(bytes, |bytes| fails(&with(bytes))));
            }
        }
    }
    script
}

/// Leaves out what is not needed for the failure, large pieces first.
fn leave_out<T: Clone>(mut list: Vec<T>, mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let mut piece = list.len().div_ceil(2);
    while piece > 0 {
        let mut at = 0;
        while at < list.len() {
            let mut shorter = list.clone();
            shorter.drain(at..(at + piece).min(list.len()));
            if fails(&shorter) {
                list = shorter;
            } else {
                at += piece;
            }
        }
        piece /= 2;
    }
    list
}

fn with_fewer_words(script: &[Step], at: usize) -> Option<Vec<Step>> {
    let mut shorter = script.to_vec();
    match &mut shorter[at].act {
        Act::Ask(words) | Act::Type(words) if words.len() > 1 => drop(words.pop()),
        _ => return None,
    }
    Some(shorter)
}
