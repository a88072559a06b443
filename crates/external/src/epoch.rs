//! Names of epochs: what was drawn when the counters began, and how often they were rebuilt since: `4f1c…`, `4f1c….1`, `4f1c….2`.
//!
//! The first part tells deployments apart, the second says which of two epochs of one deployment is the newer.

/// What was drawn, and how often it was rebuilt.
fn parts(epoch: &str) -> (&str, u64) {
    match epoch.rsplit_once('.') {
        Some((drawn, number)) => (drawn, number.parse().unwrap_or(0)),
        None => (epoch, 0),
    }
}

/// The epoch after this one, for what is rebuilt.
pub(crate) fn after(epoch: &str) -> String {
    let (drawn, number) = parts(epoch);
    format!("{drawn}.{}", number.saturating_add(1))
}

/// Whether both are of one deployment.
pub(crate) fn is_related(one: &str, other: &str) -> bool {
    parts(one).0 == parts(other).0
}

/// Whether the first is of the same deployment and came later.
pub(crate) fn is_newer(one: &str, than: &str) -> bool {
    is_related(one, than) && parts(one).1 > parts(than).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_of_one_deployment_follow_each_other() {
        assert_eq!(after("4f1c"), "4f1c.1");
        assert_eq!(after("4f1c.9"), "4f1c.10");
        assert!(is_newer("4f1c.10", "4f1c.9") && is_newer("4f1c.1", "4f1c"));
        assert!(!is_newer("4f1c", "4f1c") && !is_newer("4f1c", "4f1c.1") && !is_newer("77aa.2", "4f1c"));
        assert!(is_related("4f1c.3", "4f1c") && !is_related("4f1c", "77aa"));
    }
}
