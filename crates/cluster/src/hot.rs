//! Which keys are asked for most, in the whole cluster: every node tells what it was asked for, and that is added up.
//!
//! A request is counted by the node that answers it: a change by the leader it was brought to, when it carries it out; a look by
//! the replica that looked. Other replicas carry the same entries out and count nothing, so nothing is counted twice, and what
//! a node has counted stays true when the lead moves away from it.
//!
//! ```text
//! told := window_ms:v partitions:v requests:v* keys:v (key requests:v)*
//! ```

use futures_util::future::join_all;
use quipu_counting::{HotKey, HotKeys, KEY_BYTES_MAX};
use quipu_wire::entry::{Malformed, Reader, put_bytes, put_varint};

use crate::node::Node;
use crate::questions::{HEAR_PAUSE, kind};
use crate::raft::NodeId;

/// Keys that a node tells at most: more than anybody asks for, since what is read at several nodes must be added up
/// before it is known who is first.
const KEYS_TOLD_MAX: usize = 512;

impl Node {
    /// The keys that were asked for most in the last seconds, so many of them. Who does not answer soon is left out, and it is said so.
    pub async fn hot(&self, n: usize) -> HotKeys {
        let nodes: Vec<NodeId> = self.meta(|meta| meta.nodes.keys().copied().collect());
        let mut asked = vec![kind::HOT];
        put_varint(&mut asked, KEYS_TOLD_MAX as u64);
        let others = nodes.iter().filter(|node| **node != self.id);
        let told = join_all(others.map(|node| self.ask(*node, asked.clone(), HEAR_PAUSE, read_told))).await;
        let mut all = self.engine.hot_here(KEYS_TOLD_MAX, self.now_ms());
        for told in told {
            match told {
                Ok(told) => all.add(told),
                Err(_) => all.is_partial = true,
            }
        }
        all.keep(n);
        all
    }

    /// Answers the question of this file.
    pub(crate) fn answer_hot(&self, reader: &mut Reader<'_>) -> Result<Vec<u8>, Malformed> {
        let most = usize::try_from(reader.varint()?).unwrap_or(usize::MAX).min(KEYS_TOLD_MAX);
        Ok(encode_told(&self.engine.hot_here(most, self.now_ms())))
    }
}

fn encode_told(told: &HotKeys) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, told.window_ms);
    put_varint(&mut out, told.partitions.len() as u64);
    told.partitions.iter().for_each(|requests| put_varint(&mut out, *requests));
    put_varint(&mut out, told.keys.len() as u64);
    for HotKey { key, requests } in &told.keys {
        put_bytes(&mut out, key);
        put_varint(&mut out, *requests);
    }
    out
}

fn read_told(reader: &mut Reader<'_>) -> Result<HotKeys, Malformed> {
    let window_ms = reader.varint()?;
    let partitions = (0..reader.count()?).map(|_| reader.varint()).collect::<Result<_, _>>()?;
    let key = |reader: &mut Reader<'_>| {
        Ok(HotKey { key: reader.bytes_up_to(KEY_BYTES_MAX)?.to_vec(), requests: reader.varint()? })
    };
    let keys = (0..reader.count()?).map(|_| key(reader)).collect::<Result<_, Malformed>>()?;
    Ok(HotKeys { keys, partitions, window_ms, is_partial: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_read_as_written() {
        let keys = [(&b"likes"[..], 70_000), (b"\xff", 1)];
        let keys = keys.map(|(key, requests)| HotKey { key: key.to_vec(), requests });
        let told = HotKeys {
            keys: keys.to_vec(),
            partitions: vec![70_001, 0, 1 << 40],
            window_ms: 10_999,
            is_partial: false,
        };
        for told in [told, HotKeys::of(16), HotKeys::default()] {
            let bytes = encode_told(&told);
            assert_eq!(read_told(&mut Reader::new(&bytes)).unwrap(), told);
            for length in 0..bytes.len() {
                assert!(read_told(&mut Reader::new(&bytes[..length])).is_err());
            }
        }
    }
}
