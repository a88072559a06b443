//! What the types of windows cannot say: which fields belong to which type, and that a field may be `null` where it is sent.

use quipu_counting::series::{POINTS_MAX, Step};
use quipu_wire::json::schema::DURATION_PATTERN;
use serde_json::{Value, json};

use super::reference;

const MS: &[&str] = &["spanMs", "bucketMs", "keepMs"];

/// Adds it.
pub fn refine(schemas: &mut Value) {
    for field in MS {
        schemas["Window"]["properties"][field]["type"] = json!(["integer", "string", "null"]);
        schemas["Window"]["properties"][field]["pattern"] = json!(DURATION_PATTERN);
        schemas["Window"]["properties"][field]["maximum"] = json!(u64::MAX);
    }
    schemas["Window"]["properties"]["zone"]["type"] = json!(["string", "null"]);
    schemas["Window"]["properties"]["anchor"]["type"] = json!(["integer", "null"]);
    let unit = schemas["Window"]["properties"]["unit"]["description"].clone();
    schemas["Window"]["properties"]["unit"] =
        json!({"description": unit, "enum": ["day", "week", "month", null]});
    schemas["Window"]["oneOf"] = json!([
        sort("sliding", &["unit", "zone", "anchor"]),
        sort("fixed", &["bucketMs", "unit", "zone", "anchor"]),
        calendar("day", json!({"type": "null"})),
        calendar("week", json!({"maximum": 7})),
        calendar("month", json!({"maximum": 31})),
    ]);
    let mut of_call = schemas["Window"].clone();
    of_call["description"] = json!("How time is cut, for one call.");
    if let Some(properties) = of_call["properties"].as_object_mut() {
        properties.remove("keepMs");
        properties["zone"] =
            json!({"enum": ["UTC", null], "description": "UTC; other time zones are for policies."});
    }
    schemas["WindowOfCall"] = of_call;
    let steps = [("minutesMs", Step::Minute), ("hoursMs", Step::Hour), ("daysMs", Step::Day)];
    for (field, step) in steps {
        schemas["HistorySettings"]["properties"][field]["maximum"] = json!(POINTS_MAX as u64 * step.ms() - 1);
    }
    let kept = |(field, _): (&str, Step)| json!({"required": [field], "properties": {field: {"minimum": 1}}});
    schemas["HistorySettings"]["anyOf"] = json!(steps.map(kept));
    // Only what counts by time can have a window.
    let given = ["object", "string", "integer"];
    schemas["PolicySettings"]["if"] =
        json!({"required": ["window"], "properties": {"window": {"type": given}}});
    schemas["PolicySettings"]["then"] =
        json!({"required": ["kind"], "properties": {"kind": {"enum": ["window", "unique"]}}});
    schemas["PolicySettings"]["properties"]["window"] = json!({
        "description": schemas["PolicySettings"]["properties"]["window"]["description"],
        "oneOf": [
            {"type": "null"},
            {"type": "string", "pattern": DURATION_PATTERN},
            {"type": "integer", "minimum": 1, "maximum": u64::MAX},
            reference("schemas", "Window"),
        ],
    });
    // Items have no bounds.
    let (none, off) = (json!({"type": "null"}), json!({"const": false}));
    schemas["PolicySettings"]["allOf"] = json!([{
        "if": {"required": ["kind"], "properties": {"kind": {"const": "unique"}}},
        "then": {"properties": {"min": none, "max": none, "limit": none, "saturate": off, "soft": off}},
    }]);
    schemas["PolicySettings"]["properties"]["kind"] = json!({
        "description": schemas["PolicySettings"]["properties"]["kind"]["description"],
        "oneOf": [{"type": "null"}, reference("schemas", "Kind")],
    });
}

/// A type, and the fields that are not for it.
fn sort(name: &str, foreign: &[&str]) -> Value {
    let mut properties = json!({"type": {"const": name}});
    for field in foreign {
        properties[field] = json!({"type": "null"});
    }
    // Sliding is what holds where nothing is said.
    let required: &[&str] = if name == "sliding" { &[] } else { &["type"] };
    json!({ "required": required, "properties": properties })
}

fn calendar(unit: &str, anchor: Value) -> Value {
    let mut sort = sort("calendar", &["spanMs", "bucketMs"]);
    sort["required"] = json!(["type", "unit"]);
    sort["properties"]["unit"] = json!({ "const": unit });
    sort["properties"]["anchor"] = anchor;
    sort
}
