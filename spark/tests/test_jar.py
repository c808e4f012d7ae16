"""What the jar holds. Needs the jar in spark/target."""

from __future__ import annotations

import zipfile
from pathlib import Path

TARGET = Path(__file__).parent.parent / "target"
SHADED = "io/polycast/shaded/io/netty/util/Version.class"
NAMED_BY_NETTY, NAMED_BY_US = "META-INF/io.netty.versions.properties", "META-INF/io.polycast.shaded.netty.versions"


def test_netty_reads_its_own_version_and_not_that_of_sparks_netty() -> None:
    """gRPC chooses by this version how it puts packets together: with the one of Spark 3.5's Netty it tore messages apart."""
    found = [path for path in TARGET.glob("polycast-spark-*.jar") if not path.name.endswith("-tests.jar")]
    assert len(found) == 1, f"one jar was to be in spark/target: {found}"
    with zipfile.ZipFile(found[0]) as jar:
        code, names = jar.read(SHADED), jar.namelist()
        assert NAMED_BY_NETTY not in names and NAMED_BY_NETTY.encode() not in code and NAMED_BY_US.encode() in code
        assert "netty-buffer.version=4.1." in jar.read(NAMED_BY_US).decode()
