//! Whatever body arrives on the HTTP port: no panic.

#![no_main]

use libfuzzer_sys::fuzz_target;
use quipu_counting::Condition;
use quipu_wire::json::request::{
    AddBody, BatchAddBody, BatchGetBody, Direction, NoFields, PolicyBody, SetBody, parse, parse_or_default,
};

fuzz_target!(|data: &[u8]| {
    if let Ok(body) = parse_or_default::<AddBody>(data) {
        let _ = body.to_add(Direction::Up, Condition::Always);
        let _ = body.to_add(Direction::Down, Condition::Exists);
    }
    if let Ok(body) = parse::<SetBody>(data) {
        let _ = body.to_set(Condition::Always);
    }
    if let Ok(body) = parse::<BatchAddBody>(data) {
        body.items.iter().enumerate().for_each(|(index, item)| drop(item.to_item(index)));
    }
    if let Ok(body) = parse::<BatchGetBody>(data) {
        body.keys.iter().enumerate().for_each(|(index, key)| drop(key.to_key(index)));
    }
    if let Ok(body) = parse::<PolicyBody>(data) {
        let _ = body.to_policy();
    }
    let _ = parse_or_default::<NoFields>(data);
});
