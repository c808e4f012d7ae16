"""The Helm chart, rendered by Helm as a library. As a program it writes the files below packaging/kubernetes anew."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from helm_python import chart as helm

PACKAGING = Path(__file__).parents[1]
CHART = PACKAGING / "helm/polycast"
NAMESPACE = "polycast"
# Files that can be used without Helm, each with the template that it is made of.
PLAIN = {PACKAGING / f"kubernetes/{part}.yaml": f"polycast/templates/{part}.yaml" for part in ("manager", "agent")}
# Labels that say that Helm has made it.
_HELMS = re.compile(r"^ *(helm\.sh/chart|app\.kubernetes\.io/managed-by): .*\n", flags=re.MULTILINE)
_HEAD = (
    "# What the Helm chart makes of its values as they come; `python3 packaging/tests/chart.py` writes it anew. For another namespace than\n"
    "# polycast change the manager's address in the settings of agents.\n"
)


def render(values: dict[str, Any] | None = None, name: str = "polycast") -> dict[str, str]:
    """What the chart makes of values, by template."""
    with helm.Chart.load(CHART) as chart:
        return chart.render(values=values, name=name, namespace=NAMESPACE)


def documents(rendered: dict[str, str]) -> list[dict[str, Any]]:
    """All that Kubernetes gets of it."""
    texts = [text for template, text in rendered.items() if not template.endswith("NOTES.txt")]
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def plain(rendered: dict[str, str], template: str) -> str:
    """A template's text as a file of its own."""
    return _HEAD + _HELMS.sub("", rendered[template]).strip() + "\n"


if __name__ == "__main__":
    made = render()
    for path, source in PLAIN.items():
        path.write_text(plain(made, source))
