//! The version of IGMP or MLD that this host speaks: by it switches and clouds learn of which groups a host
//! is.

use super::Check;
use super::reach::Way;
use polycast_net::interface::Interface;
use polycast_net::reach::Querier;
use std::fs;

const NAME: &str = "igmp";
const NAME_V6: &str = "mld";

/// Says which version the kernel speaks on this interface, and why.
pub(super) fn look(used: &Interface, way: &Way, querier: Option<Querier>, checks: &mut Vec<Check>) {
    let forced = ["all", &used.name].into_iter().find_map(|name| {
        let version = forced_version(used.address.is_ipv6(), name);
        (version > 0).then_some((name, version))
    });
    if used.address.is_ipv6() {
        checks.push(judge_v6(&used.name, forced, querier.map(|querier| querier.version)));
        return;
    }
    let table = fs::read_to_string("/proc/net/igmp").unwrap_or_default();
    let forced = forced.map(|(of, _)| of);
    checks.push(judge(&used.name, version_of(&table, &used.name), forced, way.lacks_multicast()));
}

/// The version that the administrator has chosen for this interface, or for `all`; 0 for none.
fn forced_version(is_v6: bool, name: &str) -> u8 {
    let (family, protocol) = if is_v6 { ("ipv6", "mld") } else { ("ipv4", "igmp") };
    let chosen = fs::read_to_string(format!("/proc/sys/net/{family}/conf/{name}/force_{protocol}_version"));
    chosen.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// The kernel has no table of what it speaks over IPv6: it speaks MLDv1 as long as a querier of MLDv1 is
/// heard, and MLDv2 otherwise.
fn judge_v6(name: &str, forced: Option<(&str, u8)>, querier: Option<u8>) -> Check {
    match (forced, querier) {
        (Some((of, version)), _) => Check::ok(
            NAME_V6,
            format!(
                "{name} speaks MLDv{version}: net.ipv6.conf.{of}.force_mld_version says so; {}",
                joins(version)
            ),
        ),
        (None, Some(version)) => Check::ok(
            NAME_V6,
            format!("{name} speaks MLDv{version}, as a querier there does; {}", joins(version)),
        ),
        (None, None) => Check::skipped(
            NAME_V6,
            format!(
                "{name} speaks MLDv2, unless a querier of MLDv1 was heard: the kernel does not tell, and `--querier \
                 130s` as root listens for one"
            ),
        ),
    }
}

/// The memberships that a network hears of by this version of MLD.
fn joins(version: u8) -> &'static str {
    match version {
        1 => "the network hears of groups, and not of their sources",
        _ => "the network is asked for a group's packets from its source alone",
    }
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
    fn the_version_of_mld_is_that_which_is_forced_or_asked_by() {
        for (forced, querier, verdict, words) in [
            (
                Some(("eth0", 1)),
                Some(2),
                Verdict::Ok,
                "eth0 speaks MLDv1: net.ipv6.conf.eth0.force_mld_version",
            ),
            (Some(("all", 2)), None, Verdict::Ok, "packets from its source alone"),
            (
                None,
                Some(1),
                Verdict::Ok,
                "MLDv1, as a querier there does; the network hears of groups, and not",
            ),
            (None, Some(2), Verdict::Ok, "eth0 speaks MLDv2, as a querier there does"),
            (None, None, Verdict::Skipped, "eth0 speaks MLDv2, unless a querier of MLDv1 was heard"),
        ] {
            let check = judge_v6("eth0", forced, querier);
            assert!(check.verdict == verdict && check.found.contains(words), "{check:?}");
        }
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
