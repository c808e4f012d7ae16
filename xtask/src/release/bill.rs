//! The crates in a program, as CycloneDX writes them.

use super::Tagged;
use crate::dist;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Text of the bill for the program of this checkout.
pub(super) fn of(root: &Path, tagged: &Tagged) -> Result<String, String> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let metadata = dist::words(Command::new(cargo).current_dir(root).args([
        "metadata",
        "--locked",
        "--format-version",
        "1",
        "--filter-platform",
        &target,
    ]))?;
    let metadata: Value =
        serde_json::from_str(&metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    let lock = fs::read_to_string(root.join("Cargo.lock")).map_err(|error| error.to_string())?;
    let bill = bill(&metadata, &checksums(&lock)?, tagged)?;
    Ok(format!("{bill:#}\n"))
}

/// Checksums of the lock file, by name and version.
fn checksums(lock: &str) -> Result<BTreeMap<(String, String), String>, String> {
    let table: toml::Table = lock.parse().map_err(|error| format!("Cargo.lock: {error}"))?;
    let packages =
        table.get("package").and_then(toml::Value::as_array).ok_or("Cargo.lock has no packages")?;
    let field = |package: &toml::Value, name: &str| Some(package.get(name)?.as_str()?.to_string());
    let of =
        |package| Some(((field(package, "name")?, field(package, "version")?), field(package, "checksum")?));
    Ok(packages.iter().filter_map(of).collect())
}

/// Packages that the program is linked from or built with, by their ids, with those that each needs.
fn needed<'a>(metadata: &'a Value, first: &'a str) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let list = |value: &'a Value| value.as_array().map_or(&[][..], Vec::as_slice);
    let nodes = list(&metadata["resolve"]["nodes"]);
    let mut found: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut open = vec![first];
    while let Some(id) = open.pop() {
        if found.contains_key(id) {
            continue;
        }
        let node = nodes.iter().find(|node| node["id"] == id);
        let deps = node.map_or(&[][..], |node| list(&node["deps"]));
        // Needed for tests alone, a crate is not in the program.
        let counts = |dep: &&Value| {
            dep["dep_kinds"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"] != "dev"))
        };
        let below: BTreeSet<&str> =
            deps.iter().filter(counts).filter_map(|dep| dep["pkg"].as_str()).collect();
        open.extend(below.iter().copied());
        found.insert(id, below);
    }
    found
}

fn bill(
    metadata: &Value,
    sums: &BTreeMap<(String, String), String>,
    tagged: &Tagged,
) -> Result<Value, String> {
    let packages = metadata["packages"].as_array().ok_or("cargo names no packages")?;
    let named = |name: &str| {
        packages.iter().find(|package| package["name"] == name).ok_or(format!("there is no package {name}"))
    };
    let own = named("polycast")?;
    let first = own["id"].as_str().unwrap_or_default();
    // The other program of a release has all that this one has.
    let needed = needed(metadata, named("polycast-research")?["id"].as_str().unwrap_or_default());
    let reference = |id: &str| {
        let package = packages.iter().find(|package| package["id"] == id).unwrap_or(&Value::Null);
        let text = |field: &str| package[field].as_str().unwrap_or_default().to_string();
        format!("pkg:cargo/{}@{}", text("name"), text("version"))
    };
    let component = |package: &Value| {
        let text = |field: &str| package[field].as_str().unwrap_or_default().to_string();
        let purl = reference(&text("id"));
        let mut component = json!({
            "type": "library", "bom-ref": purl, "name": text("name"), "version": text("version"), "purl": purl,
        });
        if let Some(licence) = package["license"].as_str() {
            // Old crates write a slash.
            component["licenses"] =
                json!([{ "expression": licence.replace(" / ", "/").replace('/', " OR ") }]);
        }
        if let Some(sum) = sums.get(&(text("name"), text("version"))) {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
        }
        component
    };
    let is_needed =
        |package: &&Value| package["id"].as_str().is_some_and(|id| id != first && needed.contains_key(id));
    let mut components: Vec<Value> = packages.iter().filter(is_needed).map(component).collect();
    components.sort_by_key(|component| component["bom-ref"].to_string());
    let mut program = component(own);
    program["type"] = "application".into();
    let depends = |(id, below): (&&str, &BTreeSet<&str>)| {
        let below: BTreeSet<String> = below.iter().map(|id| reference(id)).collect();
        json!({ "ref": reference(id), "dependsOn": below })
    };
    Ok(json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "serialNumber": serial(tagged),
        "metadata": {
            "timestamp": tagged.time, "component": program,
            "tools": { "components": [{ "type": "application", "name": "cargo xtask release" }] },
            "properties": [{ "name": "polycast:commit", "value": tagged.commit }],
        },
        "components": components, "dependencies": needed.iter().map(depends).collect::<Vec<_>>(),
    }))
}

/// A number of the bill, which is the same for the same commit and processor: a UUID of version 8.
fn serial(tagged: &Tagged) -> String {
    let digits: String = tagged.commit.chars().chain("0".repeat(32).chars()).take(32).collect();
    let kind = if std::env::consts::ARCH == "x86_64" { "a" } else { "b" };
    format!(
        "urn:uuid:{}-{}-8{}-{kind}{}-{}",
        &digits[..8],
        &digits[8..12],
        &digits[12..15],
        &digits[15..18],
        &digits[18..30]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_for_tests_alone_are_left_out() {
        let dep = |id: &str, kinds: &[Option<&str>]| {
            let kinds: Vec<Value> = kinds.iter().map(|kind| json!({ "kind": kind })).collect();
            json!({ "pkg": id, "dep_kinds": kinds })
        };
        let package =
            |name: &str| json!({ "id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0" });
        let metadata = json!({
            "packages": [package("polycast"), package("polycast-research"), package("a"), package("b"), package("c"), package("d")],
            "resolve": { "nodes": [
                { "id": "polycast-research", "deps": [dep("polycast", &[None])] },
                { "id": "polycast", "deps": [dep("a", &[None]), dep("b", &[Some("dev")]), dep("c", &[Some("build"), Some("dev")])] },
                { "id": "a", "deps": [dep("c", &[None])] }, { "id": "b", "deps": [dep("d", &[None])] }, { "id": "c", "deps": [] },
            ] },
        });
        let tagged = Tagged {
            tag: "v1.0.0".into(),
            commit: "0123456789abcdef0123456789abcdef01234567".into(),
            time: String::new(),
        };
        let sums = [(("a".into(), "1.0.0".into()), "00".into())].into();
        let bill = bill(&metadata, &sums, &tagged).unwrap();
        let names: Vec<_> =
            bill["components"].as_array().unwrap().iter().map(|one| one["name"].clone()).collect();
        assert_eq!(names, ["a", "c", "polycast-research"]);
        assert_eq!(bill["components"][0]["hashes"][0]["content"], "00");
        assert_eq!(bill["components"][0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(bill["dependencies"].as_array().unwrap().len(), 4);
    }
}
