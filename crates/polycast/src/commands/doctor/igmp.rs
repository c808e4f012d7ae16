//! The version of IGMP that this host speaks: by it switches and clouds learn of which groups a host is.

use super::Check;
use super::reach::Way;
use polycast_net::interface::Interface;
use std::fs;

const NAME: &str = "igmp";

/// Says which version the kernel speaks on this interface, and why.
pub(super) fn look(used: &Interface, way: &Way, checks: &mut Vec<Check>) {
    if used.address.is_ipv6() {
        checks.push(Check::skipped(NAME, "IPv6 has MLD, and the kernel does not tell its version"));
        return;
    }
    let table = fs::read_to_string("/proc/net/igmp").unwrap_or_default();
    let forced = ["all", &used.name].into_iter().find(|name| is_forced(name));
    checks.push(judge(&used.name, version_of(&table, &used.name), forced, way.lacks_multicast()));
}

/// Returns true if the administrator has chosen the version for this interface, or for `all`.
fn is_forced(name: &str) -> bool {
    let chosen = fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{name}/force_igmp_version"));
    chosen.is_ok_and(|text| text.trim() != "0")
}

/// The version in the kernel's table: it is an older one as long as a querier of that one is heard.
fn version_of(table: &str, name: &str) -> Option<u8> {
    table.lines().find_map(|line| {
        let (head, rest) = line.split_once(':')?;
        let version = rest.split_whitespace().nth(1)?.strip_prefix('V')?;
        (head.split_whitespace().nth(1) == Some(name)).then(|| version.parse().ok())?
    })
}

fn judge(name: &str, version: Option<u8>, forced: Option<&str>, lacks_multicast: bool) -> Check {
    let Some(version) = version else {
        return Check::skipped(NAME, "the kernel does not tell which version it speaks");
    };
    let speaks = format!("{name} speaks IGMPv{version}");
    match (version, forced) {
        (_, Some(of)) => Check::ok(NAME, format!("{speaks}: net.ipv4.conf.{of}.force_igmp_version says so")),
        (3, None) if lacks_multicast => Check::warning(
            NAME,
            format!("{speaks}: no querier of an older version was heard"),
            "a network that understands IGMPv2 alone, as clouds do, does not see what this host joins",
            format!("where that is so: `sysctl -w net.ipv4.conf.{name}.force_igmp_version=2`, on all hosts"),
        ),
        (3, None) => Check::ok(NAME, format!("{speaks}: no querier of an older version was heard")),
        _ => Check::ok(NAME, format!("{speaks}, as a querier there does")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Verdict;

    const TABLE: &str = "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n\
        1\tlo        :     1      V3\n\t\t\t\t010000E0     1 0:00000000\t\t0\n\
        4\teth0      :     2      V2\n\t\t\t\t435050EF     1 0:00000000\t\t1\n\
        5\tenp129s0f1np1:     1      V1\n";

    #[test]
    fn the_kernels_table_says_the_version() {
        for (name, version) in
            [("lo", Some(3)), ("eth0", Some(2)), ("enp129s0f1np1", Some(1)), ("eth1", None)]
        {
            assert_eq!(version_of(TABLE, name), version, "{name}");
        }
        assert_eq!(version_of("", "lo"), None);
    }

    #[test]
    fn an_older_version_is_asked_for_only_where_multicast_is_lacking() {
        let judged = |version, forced, lacks| {
            let check = judge("eth0", version, forced, lacks);
            (check.verdict, check.found)
        };
        let heard = |text: &str| format!("eth0 speaks {text}");
        for (version, forced, lacks, expected) in [
            (Some(3), None, false, (Verdict::Ok, heard("IGMPv3: no querier of an older version was heard"))),
            (
                Some(3),
                None,
                true,
                (Verdict::Warning, heard("IGMPv3: no querier of an older version was heard")),
            ),
            (Some(2), None, true, (Verdict::Ok, heard("IGMPv2, as a querier there does"))),
            (
                Some(2),
                Some("all"),
                true,
                (Verdict::Ok, heard("IGMPv2: net.ipv4.conf.all.force_igmp_version says so")),
            ),
        ] {
            assert_eq!(judged(version, forced, lacks), expected);
        }
        assert_eq!(judged(None, None, true).0, Verdict::Skipped);
    }
}
