"""`cargo xtask release`: what it makes of a tag, and the workflow that runs it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import NO_REGISTRY, PACKAGING, program, tool

yaml = pytest.importorskip("yaml", reason=f"{NO_REGISTRY} PyYAML")
ROOT = PACKAGING.parent
_ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This checkout as a repository with one commit and its tag."""
    copy = tmp_path_factory.mktemp("tree") / "polycast"
    listed = subprocess.run([tool("git"), "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    who = ["-c", "user.name=n", "-c", "user.email=n@localhost", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "-A", "-f"], [*who, "commit", "-qm", "all"], ["tag", "v0.1.0"]):
        subprocess.run(["git", *command], cwd=copy, check=True)
    return copy


def _release(tree: Path, out: Path, *more: str) -> None:
    """Makes a release of the tests' own program."""
    built = Path(program()).parents[1]
    # Packing the tests' program as tight as a release's takes most of a minute.
    quick = {"DPKG_DEB_COMPRESSOR_TYPE": "gzip", "DPKG_DEB_COMPRESSOR_LEVEL": "1"}
    environment = dict(os.environ, CARGO_TARGET_DIR=str(built), CARGO_MANIFEST_DIR=str(tree / "xtask"), **quick)
    stripped = tree.parent / "program"
    subprocess.run([tool("strip"), "-o", stripped, program()], check=True)
    # Built from the copy it would take the place of the one that runs the checks.
    task = built / "debug/xtask"
    command = [str(task)] if task.exists() else [tool("cargo"), "run", "--offline", "--quiet", "--package", "xtask", "--"]
    command += ["release", "--program", str(stripped), *more, str(out)]
    # Whoever makes it may keep new files to himself, as one does who has a key there.
    subprocess.run(command, cwd=tree, env=environment, umask=0o077, check=True)


def test_a_release_says_what_it_is_and_where_it_comes_from(tree: Path, tmp_path: Path) -> None:
    """Checksums, a bill of materials that its schema takes, and a signed statement about the same files; what lay there is summed too."""
    key, out = tmp_path / "key.pem", tmp_path / "out"
    out.mkdir()
    (out / "polycast-0.1.0-cp311.whl").write_text("a wheel")
    subprocess.run([tool("openssl"), "genpkey", "-algorithm", "ed25519", "-out", key], check=True)
    _release(tree, out, "--tag", "v0.1.0", "--key", str(key))
    one = {ending: next(out.glob(f"*{ending}")) for ending in (".tar.gz", ".deb", ".cdx.json", ".intoto.jsonl", ".sha256")}
    said = subprocess.run(["sha256sum", "--check", "--strict", one[".sha256"].name], cwd=out, capture_output=True, text=True, check=True)
    assert said.stdout.count(": OK") == len(list(out.iterdir())) - 1 and "cp311.whl: OK" in said.stdout, said.stdout
    bill = one[".cdx.json"].read_text()
    schema = pytest.importorskip("cyclonedx.schema", reason=f"{NO_REGISTRY} cyclonedx-python-lib")
    validation = pytest.importorskip("cyclonedx.validation.json", reason=f"{NO_REGISTRY} cyclonedx-python-lib")
    assert validation.JsonStrictValidator(schema.SchemaVersion.V1_6).validate_str(bill) is None
    components = json.loads(bill)["components"]
    names = [component["name"] for component in components]
    assert len(names) > 150 and {"blake3", "ring", "tokio", "polycast-protocol"} <= set(names) and "proptest" not in names, names
    bare = [component["name"] for component in components if "licenses" not in component or "hashes" not in component]
    assert all(name.startswith("polycast-") for name in bare), bare
    statement = _verified(one[".intoto.jsonl"], key, tmp_path)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tree, capture_output=True, text=True, check=True).stdout.strip()
    built = statement["predicate"]["buildDefinition"]
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1" and built["externalParameters"]["tag"] == "v0.1.0"
    assert built["resolvedDependencies"][0]["digest"] == {"gitCommit": commit}
    sums = {subject["name"]: subject["digest"]["sha256"] for subject in statement["subject"]}
    assert {one[ending].name for ending in (".tar.gz", ".deb", ".cdx.json")} <= set(sums), sums
    assert all(hashlib.sha256((out / name).read_bytes()).hexdigest() == sum_ for name, sum_ in sums.items())


def _verified(envelope: Path, key: Path, folder: Path) -> Any:
    """The statement in an envelope, whose signature openssl takes for what the envelope signs, and for nothing else."""
    subprocess.run(["openssl", "pkey", "-in", key, "-pubout", "-out", folder / "public.pem"], check=True)
    signed = json.loads(envelope.read_text())
    payload, kind = base64.b64decode(signed["payload"]), signed["payloadType"].encode()
    (folder / "signature").write_bytes(base64.b64decode(signed["signatures"][0]["sig"]))
    for change, is_good in ((b"", True), (b" ", False)):
        text = payload + change
        (folder / "signed").write_bytes(b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(text), text))
        verify = ["openssl", "pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", "public.pem", "-sigfile", "signature", "-in", "signed"]
        ran = subprocess.run(verify, cwd=folder, capture_output=True, check=False)
        assert (ran.returncode == 0) == is_good, ran.stdout
    return json.loads(payload)


def test_nothing_is_released_of_a_changed_tree(tree: Path, tmp_path: Path) -> None:
    """Nor of another tag."""
    readme = tree / "README.md"
    text = readme.read_text()
    readme.write_text(text + "more\n")
    with pytest.raises(subprocess.CalledProcessError):
        _release(tree, tmp_path)
    readme.write_text(text)
    with pytest.raises(subprocess.CalledProcessError):
        _release(tree, tmp_path, "--tag", "v0.2.0")
    assert not list(tmp_path.iterdir())


def test_workflows_are_sound(tmp_path: Path) -> None:
    """actionlint finds no fault, actions of others are named by commits, and the release attaches what it has made on both processors."""
    linter = shutil.which("actionlint")
    if linter is None and shutil.which("go"):
        ran = subprocess.run(["go", "install", _ACTIONLINT], env=dict(os.environ, GOBIN=str(tmp_path)), capture_output=True, text=True, check=False)
        linter = str(tmp_path / "actionlint") if ran.returncode == 0 else None
    files = sorted((ROOT / ".github/workflows").glob("*.yml"))
    for file in files:
        for used in re.findall(r"uses: (\S+)", file.read_text()):
            assert re.fullmatch(r"[^@]+@[0-9a-f]{40}", used), f"{file.name}: {used}"
    release = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    build = release["jobs"]["build"]
    assert [one["musl"].split("-")[0] for one in build["strategy"]["matrix"]["include"]] == ["x86_64", "aarch64"]
    lines = "\n".join(step.get("run", "") for step in build["steps"])
    order = ["cargo xtask dist --static out", "maturin build", 'cargo xtask release --tag "$GITHUB_REF_NAME"', "gh release upload"]
    assert sorted(order, key=lines.index) == order, lines
    # Both processors' runs attach the protos, and a run may be repeated.
    assert "--clobber" in lines
    # With it a checkout of a tag fails: actions/checkout#1467.
    assert all("fetch-tags" not in step.get("with", {}) for job in release["jobs"].values() for step in job["steps"])
    # YAML takes the word on for true.
    assert release[True] == {"push": {"tags": ["v*"]}}
    if linter is None:
        pytest.skip(f"{NO_REGISTRY} actionlint")
    ran = subprocess.run([linter, "-color=false", *map(str, files)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
