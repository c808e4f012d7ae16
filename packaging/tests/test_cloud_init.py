"""The user data for cloud-init, against the schema of Debian's cloud-init, which is read out of its package and not installed."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import HANG_S, NO_REGISTRY, PACKAGING, program, tool

yaml = pytest.importorskip("yaml", reason=f"{NO_REGISTRY} PyYAML")
jsonschema = pytest.importorskip("jsonschema", reason=f"{NO_REGISTRY} jsonschema")

FILE = PACKAGING / "cloud-init/agent.yaml"
SCHEMA = "usr/lib/python3/dist-packages/cloudinit/config/schemas/schema-cloud-config-v1.json"


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What cloud-init says that user data may be."""
    if shutil.which("apt-get") is None:
        pytest.skip(f"{NO_REGISTRY} cloud-init: there is no apt-get here")
    folder = tmp_path_factory.mktemp("cloud-init")
    fetched = subprocess.run(["apt-get", "download", "-q", "cloud-init"], cwd=folder, capture_output=True, timeout=HANG_S, check=False)
    packages = list(folder.glob("*.deb"))
    if fetched.returncode != 0 or not packages:
        pytest.skip(f"{NO_REGISTRY} cloud-init: {fetched.stderr.decode().strip()}")
    subprocess.run([tool("dpkg"), "-x", str(packages[0]), str(folder)], timeout=HANG_S, check=True)
    return json.loads((folder / SCHEMA).read_text())


def test_cloud_init_takes_it(schema: Any) -> None:
    text = FILE.read_text()
    assert text.startswith("#cloud-config\n")
    data = yaml.safe_load(text)
    jsonschema.Draft4Validator(schema).validate(data)
    data["write_files"][0]["owners"] = "polycast"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft4Validator(schema).validate(data)


def test_its_settings_are_an_agents(short_folder: Path) -> None:
    """The agent reads them, and finds only fault with the token, which is not filled in."""
    (written,) = yaml.safe_load(FILE.read_text())["write_files"]
    settings = short_folder / "agent.toml"
    settings.write_text(written["content"].replace("<MANAGER>", "127.0.0.1"))
    command = [program(), "--json", "agent", "--config", str(settings)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert result.returncode == 1
    assert "'token'" in json.loads(result.stdout)["error"], result.stdout
