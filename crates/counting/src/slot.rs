//! Keys to slots to partitions.
//!
//! A slot is CRC16 (XMODEM) of the key, or of its `{tag}`, modulo 16384: the map of Redis Cluster, so that
//! existing smart clients route for us. A partition is a contiguous power-of-two range of slots.

/// How many slots there are, as in Redis Cluster.
pub const SLOTS: u16 = 16384;
/// The most partitions a data folder may have.
pub const PARTITIONS_MAX: u16 = 256;

/// The part of the key that decides the slot: what stands between the first `{` and the next `}`, if anything.
pub fn tag(key: &[u8]) -> &[u8] {
    if !may_contain(key, b'{') {
        return key;
    }
    let Some(open) = key.iter().position(|byte| *byte == b'{') else { return key };
    match key[open + 1..].iter().position(|byte| *byte == b'}') {
        Some(length) if length > 0 => &key[open + 1..open + 1 + length],
        _ => key,
    }
}

/// Whether the byte may be among these: a look at eight at a time, because nearly no key has a tag.
fn may_contain(bytes: &[u8], byte: u8) -> bool {
    const LOW: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);
    let wanted = u64::from_ne_bytes([byte; 8]);
    // A byte of the word is zero where they are equal.
    let is_in = |eight: &[u8; 8]| {
        let word = u64::from_ne_bytes(*eight) ^ wanted;
        word.wrapping_sub(LOW) & !word & HIGH != 0
    };
    match (bytes.as_chunks(), bytes.last_chunk()) {
        ((eights, _), Some(last)) => eights.iter().any(is_in) || is_in(last),
        _ => bytes.contains(&byte),
    }
}

/// The slot of a key.
pub fn slot(key: &[u8]) -> u16 {
    crc16(tag(key)) % SLOTS
}

/// The partition of a slot, where `partitions` is a power of two.
pub fn partition(slot: u16, partitions: u16) -> u16 {
    debug_assert!(partitions.is_power_of_two() && partitions <= PARTITIONS_MAX && slot < SLOTS);
    slot / (SLOTS / partitions)
}

/// `TABLES[n][byte]` is the effect of `byte` followed by `n` zero bytes; eight tables take eight bytes a step.
static TABLES: [[u16; 256]; 8] = tables();

const fn tables() -> [[u16; 256]; 8] {
    let mut tables = [[0u16; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 != 0 { (crc << 1) ^ 0x1021 } else { crc << 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[table - 1][byte];
            tables[table][byte] = (before << 8) ^ tables[0][(before >> 8) as usize];
            byte += 1;
        }
        table += 1;
    }
    tables
}

fn crc16(bytes: &[u8]) -> u16 {
    let (eights, rest) = bytes.as_chunks::<8>();
    let mut crc = 0u16;
    for eight in eights {
        let [high, low] = crc.to_be_bytes();
        crc = TABLES[7][usize::from(eight[0] ^ high)]
            ^ TABLES[6][usize::from(eight[1] ^ low)]
            ^ TABLES[5][usize::from(eight[2])]
            ^ TABLES[4][usize::from(eight[3])]
            ^ TABLES[3][usize::from(eight[4])]
            ^ TABLES[2][usize::from(eight[5])]
            ^ TABLES[1][usize::from(eight[6])]
            ^ TABLES[0][usize::from(eight[7])];
    }
    let [high, low] = crc.to_be_bytes();
    // What the crc says of the bytes behind the rest: nothing, once two of them have taken it up.
    let mut rest_crc = if rest.len() < 2 { crc << (8 * rest.len()) } else { 0 };
    for (at, byte) in rest.iter().enumerate() {
        let taken_up = match at {
            0 => high,
            1 => low,
            _ => 0,
        };
        rest_crc ^= TABLES[rest.len() - 1 - at][usize::from(byte ^ taken_up)];
    }
    rest_crc
}

#[cfg(test)]
mod tests {
    use super::{SLOTS, crc16, partition, slot, tag};

    /// From the Redis Cluster specification and `CLUSTER KEYSLOT` of a running Redis.
    #[test]
    fn slots_are_those_of_redis_cluster() {
        for (key, expected) in [("foo", 12182), ("bar", 5061), ("123456789", 12739), ("foo{bar}{zap}", 5061)]
        {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
        assert_eq!(crc16(b"123456789"), 0x31C3);
    }

    #[test]
    fn tags() {
        for (key, expected) in [
            ("a{b}c", "b"),
            ("a{}c", "a{}c"),
            ("a{b", "a{b"),
            ("{a}{b}", "a"),
            ("a{{b}}c", "{b"),
            ("ab", "ab"),
            ("a long key without", "a long key without"),
            ("a long key with {a} tag", "a"),
            ("a long key {tag", "a long key {tag"),
            ("a long key{tag}", "tag"),
        ] {
            assert_eq!(tag(key.as_bytes()), expected.as_bytes(), "{key}");
        }
    }

    #[test]
    fn eight_bytes_at_a_time_is_one_byte_at_a_time() {
        let bytes: Vec<u8> = (0..200u32).map(|n| (n * 37 + 11) as u8).collect();
        for length in 0..bytes.len() {
            let slow = bytes[..length].iter().fold(0u16, |crc, byte| {
                (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| {
                    if crc & 0x8000 != 0 { crc << 1 ^ 0x1021 } else { crc << 1 }
                })
            });
            assert_eq!(crc16(&bytes[..length]), slow, "{length} bytes");
        }
    }

    #[test]
    fn partitions_are_contiguous_ranges() {
        for partitions in [1, 2, 16, 256] {
            assert_eq!(partition(0, partitions), 0);
            assert_eq!(partition(SLOTS - 1, partitions), partitions - 1);
        }
        assert_eq!(partition(1023, 16), 0);
        assert_eq!(partition(1024, 16), 1);
    }
}
