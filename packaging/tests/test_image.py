"""The container image that `cargo xtask dist` makes: read by Skopeo, and run."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import HANG_S, PACKAGING, program, tool

ROOT = PACKAGING.parent


def _make(of: Path, out: Path) -> Path:
    """An image of a program."""
    built = Path(program()).parents[1]
    task = [tool("cargo"), "run", "--offline", "--quiet", "--package", "xtask", "--", "dist", "--image", str(of), str(out)]
    subprocess.run(task, cwd=ROOT, env=dict(os.environ, CARGO_TARGET_DIR=str(built)), check=True, stdout=subprocess.DEVNULL)
    (image,) = out.glob("polycast-*-image.tar")
    return image


def _skopeo(*words: str) -> Any:
    ran = subprocess.run([tool("skopeo"), *words], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout) if words[0] == "inspect" else None


def test_the_same_program_gives_the_same_image(tmp_path: Path) -> None:
    small = tmp_path / "program"
    small.write_text("#!/bin/sh\necho polycast 1.2.3\n")
    small.chmod(0o700)
    images = [_make(small, tmp_path / folder) for folder in ("one", "two")]
    assert {image.name.split("-")[1] for image in images} == {"1.2.3"}
    assert len({hashlib.sha256(image.read_bytes()).digest() for image in images}) == 1


def test_the_image_is_one_and_runs(tmp_path: Path) -> None:
    """The tools of runtimes take it; the program in it begins, as a user without rights, on a root that cannot be written."""
    stripped = tmp_path / "program"
    subprocess.run([tool("strip"), "-o", stripped, program()], check=True)
    image = _make(stripped, tmp_path)
    about = _skopeo("inspect", "--config", f"oci-archive:{image}")
    assert about["config"]["Entrypoint"] == ["/usr/bin/polycast"] and about["config"]["User"] == "65532:65532", about
    told = _skopeo("inspect", f"oci-archive:{image}")
    version = image.name.split("-")[1]
    assert told["Labels"]["org.opencontainers.image.version"] == version and told["Os"] == "linux", told
    # Skopeo compares each digest, and undoes the layer.
    _skopeo("copy", "--insecure-policy", "--quiet", f"oci-archive:{image}", f"docker-archive:{tmp_path}/docker.tar:polycast:{version}")
    _skopeo("copy", "--insecure-policy", "--quiet", f"oci-archive:{image}", f"dir:{tmp_path}/parts")
    manifest = json.loads((tmp_path / "parts/manifest.json").read_text())
    root = tmp_path / "root"
    root.mkdir()
    for layer in manifest["layers"]:
        blob = tmp_path / "parts" / layer["digest"].removeprefix("sha256:")
        subprocess.run(["tar", "-xzf", blob, "-C", root, "--no-same-owner"], check=True)
    assert {path.name for path in root.iterdir()} == {"tmp", "usr"}
    if os.geteuid() != 0:
        pytest.skip("not root: the program of the image runs in a root of its own")
    # That of the tests takes libraries of this system; the one that is given away takes none.
    script = """set -e
        mount --bind $0 $0; cd $0
        for folder in lib lib64 usr/lib; do [ ! -d /$folder ] || { mkdir -p $folder; mount --rbind /$folder $folder; }; done
        mount -o remount,ro,bind $0
        exec chroot --userspec=65532:65532 --groups= $0 /usr/bin/polycast --version"""
    ran = subprocess.run([tool("unshare"), "--mount", "sh", "-c", script, root], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert ran.returncode == 0 and version in ran.stdout, ran.stderr
