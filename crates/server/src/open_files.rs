//! The limit on open files, which is a limit on connections: the server and the load generator raise it.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit to `wanted`, or as far as this user may. Returns what is allowed from now on.
pub fn raise_limit(wanted: u64) -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // No limit at all.
    let Some(current) = current else { return u64::MAX };
    if current >= wanted {
        return current;
    }
    let possible = maximum.map_or(wanted, |maximum| maximum.min(wanted));
    match setrlimit(Resource::Nofile, Rlimit { current: Some(possible), maximum }) {
        Ok(()) => possible,
        Err(_) => current,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_rises_and_never_falls() {
        let before = raise_limit(0);
        assert_eq!(raise_limit(before.saturating_sub(1)), before);
        assert!(raise_limit(before.saturating_add(1)) >= before);
    }
}
