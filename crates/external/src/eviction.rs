//! A Redis that throws keys away when its memory is full would throw counters away, and each would begin at zero.

use redis::RedisResult;

use crate::masters::{Links, Map};

/// What is wrong with how masters are set, if something is. Who cannot be asked says nothing.
pub(crate) async fn warning(links: &Links, map: &Map) -> Option<String> {
    for address in map.masters() {
        let said: RedisResult<String> = links.ask_for(&address, redis::cmd("INFO").arg("memory")).await;
        if let Some(policy) = said.ok().as_deref().and_then(evicting) {
            return Some(format!(
                "Redis at {address} may throw counters away when its memory is full (maxmemory-policy {policy}), and they would begin \
                 at zero; set maxmemory-policy noeviction"
            ));
        }
    }
    None
}

/// The policy by which keys are thrown away, if they are.
fn evicting(info: &str) -> Option<&str> {
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let has_limit = field("maxmemory:").is_some_and(|bytes| bytes != "0");
    field("maxmemory_policy:").filter(|policy| has_limit && *policy != "noeviction")
}

#[cfg(test)]
mod tests {
    use super::evicting;

    #[test]
    fn only_who_has_a_limit_throws_away() {
        let info = |bytes: u64, policy: &str| {
            format!("# Memory\r\nmaxmemory:{bytes}\r\nmaxmemory_policy:{policy}\r\n")
        };
        assert_eq!(evicting(&info(1 << 20, "volatile-lru")), Some("volatile-lru"));
        assert_eq!(evicting(&info(0, "allkeys-lru")), None);
        assert_eq!(evicting(&info(1 << 20, "noeviction")), None);
        assert_eq!(evicting(""), None);
    }
}
