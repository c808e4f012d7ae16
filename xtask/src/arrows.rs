//! The house has floors and three wings. An arrow (one crate uses another) only ever points down, and never
//! from what delivers to research, nor from either to what verifies them.

use crate::workspace::Member;
use std::collections::BTreeSet;
use toml::{Table, Value};

/// A crate's place in the house.
struct Place {
    floor: u8,
    wing: &'static str,
    folder: &'static str,
    /// The crates right below that it may use; it may then use what these may use.
    may_use: &'static [&'static str],
}

const fn place(
    floor: u8,
    wing: &'static str,
    folder: &'static str,
    may_use: &'static [&'static str],
) -> Place {
    Place { floor, wing, folder, may_use }
}

/// The house, from the ground up. A crate that is not in this table has no place in the workspace.
const HOUSE: &[Place] = &[
    place(1, "crates", "types", &[]),
    place(2, "crates", "topology", &["types"]),
    place(2, "crates", "wire", &["types"]),
    place(2, "crates", "api", &["types"]),
    place(3, "crates", "planning", &["topology"]),
    place(3, "crates", "net", &["wire"]),
    place(4, "crates", "gateway", &["net", "api"]),
    place(4, "crates", "protocol", &["wire", "planning"]),
    place(5, "crates", "agent", &["protocol", "net", "api"]),
    place(5, "crates", "manager", &["protocol", "net", "api"]),
    place(5, "research", "simulator", &["protocol"]),
    place(6, "research", "lab", &["agent", "manager"]),
    place(6, "research", "experiments", &["simulator", "planning"]),
    place(7, "crates", "polycast", &["agent", "manager", "gateway"]),
    // The program `polycast-research`.
    place(8, "research", "cli", &["polycast", "lab", "experiments", "simulator"]),
    // In no list: only tests use it.
    place(1, "verify", "testing", &[]),
    place(6, "verify", "swarm", &["simulator"]),
    place(6, "verify", "fuzz", &["agent", "manager"]),
];

/// The folder of the crate whose package has this name.
pub(crate) fn folder_of(package: &str) -> Option<&str> {
    match package {
        "polycast" => Some("polycast"),
        "polycast-research" => Some("cli"),
        package => package.strip_prefix("polycast-"),
    }
}

fn place_of(folder: &str) -> Option<&'static Place> {
    HOUSE.iter().find(|place| place.folder == folder)
}

/// All that a crate may use, directly or through others.
fn closure(folder: &str) -> BTreeSet<&'static str> {
    let mut allowed = BTreeSet::new();
    let mut pending: Vec<&str> = place_of(folder).map_or(&[][..], |place| place.may_use).to_vec();
    while let Some(next) = pending.pop() {
        if let Some(place) = place_of(next)
            && allowed.insert(place.folder)
        {
            pending.extend(place.may_use);
        }
    }
    allowed
}

/// Names of the packages that a manifest's code uses: what only its tests use is left out.
pub(crate) fn dependencies(manifest: &Table) -> BTreeSet<String> {
    packages(manifest, &["dependencies", "build-dependencies"])
}

/// Names of all packages that a manifest names, those of its tests among them.
pub(crate) fn all_dependencies(manifest: &Table) -> BTreeSet<String> {
    packages(manifest, &["dependencies", "build-dependencies", "dev-dependencies"])
}

fn packages(manifest: &Table, sections: &[&str]) -> BTreeSet<String> {
    let mut tables: Vec<&Table> = vec![manifest];
    if let Some(targets) = manifest.get("target").and_then(Value::as_table) {
        tables.extend(targets.values().filter_map(Value::as_table));
    }
    let uses = tables
        .iter()
        .flat_map(|table| sections.iter().filter_map(|section| table.get(*section)?.as_table()))
        .flatten();
    // A dependency may be renamed: then its package is named inside.
    uses.map(|(key, value)| value.get("package").and_then(Value::as_str).unwrap_or(key).to_string()).collect()
}

/// Every breach of the arrows, one sentence each.
pub(crate) fn check(members: &[Member]) -> Vec<String> {
    let mut problems = Vec::new();
    for member in members {
        let Member { wing, folder, .. } = member;
        if place_of(folder).is_none_or(|place| place.wing != *wing) {
            problems.push(format!("{wing}/{folder} has no place in the house (xtask/src/arrows.rs)"));
            continue;
        }
        let package = member.manifest.get("package").and_then(|table| table.get("name")?.as_str());
        if package.and_then(folder_of) != Some(folder) {
            let package = package.unwrap_or_default();
            problems.push(format!("the package in {wing}/{folder} is called '{package}'"));
        }
        let allowed = closure(folder);
        for dependency in dependencies(&member.manifest) {
            if let Some(used) = folder_of(&dependency)
                && !allowed.contains(used)
            {
                problems.push(format!("{folder} must not use {used}: arrows only point down"));
            }
        }
    }
    problems
}

/// The members by floor, each with the ones that it uses.
pub(crate) fn picture(members: &[Member]) -> String {
    let mut lines = Vec::new();
    for place in HOUSE.iter().rev() {
        if let Some(member) = members.iter().find(|member| member.folder == place.folder) {
            let dependencies = dependencies(&member.manifest);
            let uses: Vec<_> = dependencies.iter().filter_map(|package| folder_of(package)).collect();
            lines.push(format!("{} {:<12} -> {}", place.floor, place.folder, uses.join(", ")));
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::WINGS;

    fn member(folder: &str, manifest: &str) -> Member {
        let wing = place_of(folder).map_or("crates", |place| place.wing);
        Member { wing, folder: folder.to_string(), manifest: manifest.parse().unwrap() }
    }

    fn problems(folder: &str, rest: &str) -> Vec<String> {
        let package = if folder == "polycast" { folder.to_string() } else { format!("polycast-{folder}") };
        check(&[member(folder, &format!("[package]\nname = \"{package}\"\n{rest}"))])
    }

    #[test]
    fn the_workspace_keeps_the_arrows() {
        let workspace = crate::workspace::load();
        assert!(workspace.members.len() >= 10, "the workspace was not found");
        assert_eq!(check(&workspace.members), Vec::<String>::new());
    }

    #[test]
    fn the_house_itself_only_points_down() {
        for place in HOUSE {
            for used in place.may_use {
                let below = place_of(used).unwrap();
                assert!(below.floor < place.floor, "{} uses {used}", place.folder);
                let wing = |of: &Place| WINGS.iter().position(|wing| *wing == of.wing);
                assert!(wing(below) <= wing(place), "{} uses {used} of another wing", place.folder);
            }
        }
    }

    #[test]
    fn arrows_that_point_down_are_fine() {
        assert!(
            problems("protocol", "[dependencies]\npolycast-types = {}\npolycast-planning = {}").is_empty()
        );
        assert!(problems("polycast", "[dependencies]\npolycast-wire = {}\nclap = \"4\"").is_empty());
        assert!(problems("types", "[dev-dependencies]\npolycast-agent = {}").is_empty());
        assert!(problems("planning", "[dev-dependencies]\npolycast-testing = {}").is_empty());
    }

    #[test]
    fn arrows_that_point_up_or_sideways_are_found() {
        for (folder, used) in [
            ("types", "wire"),
            ("wire", "topology"),
            ("protocol", "net"),
            ("net", "planning"),
            ("agent", "manager"),
            ("simulator", "net"),
            ("agent", "polycast"),
            ("planning", "unknown"),
            ("polycast", "testing"),
            ("polycast", "lab"),
            ("agent", "simulator"),
            ("experiments", "fuzz"),
            ("simulator", "swarm"),
            ("experiments", "swarm"),
        ] {
            let package = if used == "polycast" { used.to_string() } else { format!("polycast-{used}") };
            for manifest in [
                format!("[dependencies]\n{package} = \"1\""),
                format!("[dependencies.{package}]\nworkspace = true"),
                format!("[build-dependencies]\n{package}.workspace = true"),
                format!("[target.'cfg(unix)'.dependencies]\n{package} = \"1\""),
                format!("[dependencies]\nrenamed = {{ package = \"{package}\", path = \"x\" }}"),
            ] {
                let found = problems(folder, &manifest);
                assert_eq!(found.len(), 1, "{folder} -> {used} in {manifest}");
                assert!(found[0].contains(used), "{found:?}");
            }
        }
    }

    #[test]
    fn strangers_are_found() {
        assert!(problems("cellar", "")[0].contains("no place"));
        let wrong = check(&[member("wire", "[package]\nname = \"polycast-types\"")]);
        assert!(wrong[0].contains("is called 'polycast-types'"), "{wrong:?}");
    }

    #[test]
    fn the_picture_shows_what_is_used() {
        let manifest = "[package]\nname = \"polycast-wire\"\n[dependencies]\npolycast-types = {}";
        assert_eq!(picture(&[member("wire", manifest)]), "2 wire         -> types");
    }
}
