"""Makes docs/reference/python.md out of the package's signatures and comments: `python3 python/reference.py`.

It reads the sources and imports nothing of them, so that it runs without the native module. With `--check` it writes nothing, and says
whether the page is as the sources are.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "python/package/polycast"
PAGE = ROOT / "docs/reference/python.md"
WIDTH = 120

# The modules of the page, and the files that have what each of them gives.
MODULES = {
    "polycast": ["_agent.py", "_events.py", "_groups.py", "_program.py"],
    "polycast.aio": ["aio.py"],
    "polycast.tensors": ["tensors.py"],
    "polycast.torch": ["torch.py"],
    "polycast.distributed": ["distributed.py"],
    "polycast.dask": ["dask.py"],
    "polycast.ray": ["ray.py"],
    "polycast.vllm": ["vllm/__init__.py", "vllm/engine.py", "vllm/trainer.py"],
    "polycast.vllm.lora": ["vllm/lora.py"],
    "polycast.sglang": ["sglang.py"],
    "polycast.verl": ["verl.py"],
    "polycast.nemo": ["nemo.py"],
    "polycast.shared_folder": ["shared_folder.py"],
    "polycast.trl": ["trl.py"],
    "polycast.values": ["values.py"],
    "polycast.fsspec": ["fsspec.py"],
    "polycast.errors": ["errors.py"],
}
HEAD = """\
# The Python package

Made from the package by `python3 python/reference.py`; a test holds it. [howto/python.md](../howto/python.md) tells how the parts are used
together. Names that begin with `_` belong to the package alone and are left out.
"""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef | ast.AnnAssign


def module_file(name: str) -> Path:
    """The file whose comment opens the module's section."""
    files = MODULES[name]
    return PACKAGE / ("__init__.py" if name == "polycast" else files[0])


def exported(tree: ast.Module) -> list[str] | None:
    """The names of `__all__`; None where a module has none."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    return None


def called(node: Definition) -> str:
    """The name that a definition gives something; nothing where it gives several."""
    return node.name if not isinstance(node, ast.AnnAssign) else ast.unparse(node.target)


def is_plain(node: Definition) -> bool:
    """Whether a definition of a module that has no `__all__` is for its users."""
    return not isinstance(node, ast.AnnAssign) and not node.name.startswith("_")


def public(name: str) -> list[Definition]:
    """What a module gives, in the order of its sources."""
    wanted = exported(ast.parse(module_file(name).read_text()))
    found: list[Definition] = []
    for file in MODULES[name]:
        for node in ast.parse((PACKAGE / file).read_text()).body:
            if isinstance(node, Definition) and (called(node) in wanted if wanted else is_plain(node)):
                found.append(node)
    return found


def paragraphs(text: str) -> str:
    """A comment as Markdown: sentences are filled, and what is indented is code."""
    parts: list[str] = []
    for part in re.split(r"\n\s*\n", textwrap.dedent(text).strip("\n")):
        if part.startswith("    "):
            code = textwrap.dedent(part)
            is_more = bool(parts) and parts[-1].endswith("```")
            parts.append(f"{parts.pop()[:-4]}\n\n{code}\n```" if is_more else f"```python\n{code}\n```")
        else:
            parts.append(textwrap.fill(" ".join(part.split()), WIDTH, break_long_words=False, break_on_hyphens=False))
    return "\n\n".join(parts)


def comment(node: Function | ast.ClassDef | ast.Module) -> str:
    """The comment of a definition, with its first line in line with the others, or that of a module, where what is indented is code."""
    return ast.get_docstring(node, clean=not isinstance(node, ast.Module)) or ""


def one_argument(argument: ast.arg, default: ast.expr | None = None) -> str:
    """An argument as it is written in the sources."""
    shown = argument.arg + (f": {ast.unparse(argument.annotation)}" if argument.annotation else "")
    equals = " = " if argument.annotation else "="
    return shown + (equals + ast.unparse(default).replace("'", '"') if default else "")


def all_arguments(arguments: ast.arguments, is_bound: bool) -> str:
    """The arguments of a function; those of methods without the object."""
    plain = arguments.posonlyargs + arguments.args
    defaults = [None] * (len(plain) - len(arguments.defaults)) + arguments.defaults
    shown = [one_argument(*pair) for pair in zip(plain, defaults, strict=True)][1 if is_bound else 0 :]
    if arguments.vararg or arguments.kwonlyargs:
        shown.append(f"*{one_argument(arguments.vararg)}" if arguments.vararg else "*")
    shown += [one_argument(*pair) for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    return ", ".join(shown + ([f"**{one_argument(arguments.kwarg)}"] if arguments.kwarg else []))


def signature(node: Function, owner: str = "") -> str:
    """How a function is called, on lines that are not too long."""
    inner = all_arguments(node.args, bool(owner) and not has(node, "staticmethod"))
    begin = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    end = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    name = owner if node.name == "__init__" else f"{owner}.{node.name}" if owner else node.name
    line = f"{begin}{name}({inner}){end}"
    if len(line) <= WIDTH:
        return line
    lines = textwrap.wrap(inner, WIDTH - 4, break_long_words=False, break_on_hyphens=False)
    return f"{begin}{name}(\n    " + "\n    ".join(lines) + f"\n){end}"


def has(node: ast.ClassDef | Function, word: str) -> bool:
    """Whether a definition has a decorator."""
    return any(word in ast.unparse(decorator) for decorator in node.decorator_list)


def is_made_here(node: Function) -> bool:
    """Whether only the package makes objects of a class: they are made of what the native module gives."""
    return "_native." in ast.unparse(node.args) or any(argument.arg.startswith("_") for argument in node.args.args)


def of_class(node: ast.ClassDef) -> str:
    """The section of a class: what it is, its fields, how it is made, its methods."""
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    parts = [f"### `{node.name}{f'({bases})' if bases else ''}`", paragraphs(comment(node))]
    fields = [
        f"{line.target.id}: {ast.unparse(line.annotation)}" + (f" = {ast.unparse(line.value)}" if line.value else "")
        for line in node.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and not line.target.id.startswith("_")
    ]
    if fields:
        parts.append("```python\n" + "\n".join(fields) + "\n```")
    for line in node.body:
        if not isinstance(line, Function):
            continue
        if line.name == "__init__" and not is_made_here(line):
            parts.append(f"```python\n{signature(line, node.name)}\n```")
        elif not line.name.startswith("_") and comment(line):
            if has(line, "property"):
                shown = f"{node.name}.{line.name}: {ast.unparse(line.returns) if line.returns else 'Any'}"
            else:
                shown = signature(line, node.name)
            parts += [f"```python\n{shown}\n```", paragraphs(comment(line))]
    return "\n\n".join(part for part in parts if part)


def page() -> str:
    """The whole page."""
    parts = [HEAD.rstrip()]
    for name in MODULES:
        opening = comment(ast.parse(module_file(name).read_text()))
        parts += [f"## `{name}`", paragraphs(opening)]
        for node in public(name):
            if isinstance(node, ast.ClassDef):
                parts.append(of_class(node))
            elif isinstance(node, ast.AnnAssign):
                parts += [f"### `{called(node)}`", f"```python\n{ast.unparse(node)}\n```"]
            else:
                parts += [f"### `{node.name}`", f"```python\n{signature(node)}\n```", paragraphs(comment(node))]
    return "\n\n".join(part for part in parts if part) + "\n"


def without_comment() -> list[str]:
    """What is public and says nothing of itself. Methods that vLLM calls are described there."""
    silent = []
    for name in MODULES:
        for node in public(name):
            if isinstance(node, ast.AnnAssign):
                continue
            if not comment(node):
                silent.append(f"{name}.{node.name}")
            is_ours = isinstance(node, ast.ClassDef) and name != "polycast.vllm"
            for line in node.body if is_ours else []:
                if isinstance(line, Function) and not line.name.startswith("_") and not comment(line):
                    silent.append(f"{name}.{node.name}.{line.name}")
    return silent


def main() -> int:
    """Writes the page, or looks at it."""
    made = page()
    if sys.argv[1:] == ["--check"]:
        if PAGE.exists() and PAGE.read_text() == made:
            return 0
        print("docs/reference/python.md is not of this package: run python3 python/reference.py", file=sys.stderr)
        return 1
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
