"""Pages of the documentation that nobody writes by hand, for mkdocs (see mkdocs.yml).

The commands and the Python reference come from the code, notebooks and examples from their files,
and the documents at the root of the repository are shown along with those in docs/.
"""

import inspect
import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TOP = ("CHANGELOG.md", "CONTRIBUTING.md", "DESIGN.md")
GENERATED = ("api.md", "commands.md")
FIRST = ("api", "commands", "experiment.schema", "experiment.loading", "data.federated")
EXAMPLES = ROOT / "examples"


def on_config(config: Any) -> Any:
    """Fill in what the table of contents leaves to us; a new page in docs/ is a how-to."""
    named = set(re.findall(r"[\w/-]+\.md", json.dumps(config.nav)))
    found = {path.name for path in (ROOT / "docs").glob("*.md")} - named
    for part in config.nav:
        if "How-to" in part:
            part["How-to"] += sorted(found)
        for pages in part.values():
            for page in pages if isinstance(pages, list) else ():
                if page == {"Notebooks": "notebooks"}:
                    page["Notebooks"] = [f"notebooks/{each.stem}.md" for each in notebooks()]
                elif page == {"Decisions": "adr"}:
                    decisions = sorted((ROOT / "docs" / "adr").glob("*.md"))
                    page["Decisions"] = [f"adr/{each.name}" for each in decisions]
                elif page == {"Figures": "reproduce"}:
                    figures = sorted((ROOT / "docs" / "reproduce").glob("*.md"))
                    page["Figures"] = [f"reproduce/{each.name}" for each in figures]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages."""
    made = import_module("mkdocs.structure.files").File.generated
    pages = {name: (ROOT / name).read_text(encoding="utf-8") for name in TOP}
    pages |= {"api.md": api(), "commands.md": commands()}
    pages |= {f"notebooks/{each.stem}.md": notebook(each) for each in notebooks()}
    for name, text in pages.items():
        files.append(made(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrite links for the site, and insert the examples that a page mentions."""
    if page.file.src_uri in TOP:
        markdown = markdown.replace("](docs/adr)", "](adr/0001-engines-yield-models-in-order.md)")
        markdown = markdown.replace("](docs/", "](")
    markdown = markdown.replace("](../README.md)", "](index.md)")
    for name in TOP:
        markdown = markdown.replace(f"](../{name})", f"]({name})")
    return re.sub(r"<!-- example: (\w+\.py) -->", _example, markdown)


def _example(found: re.Match[str]) -> str:
    text = (EXAMPLES / found[1]).read_text(encoding="utf-8")
    return f"```python\n{text}```"


def notebooks() -> list[Path]:
    """In the order of their names."""
    return sorted((EXAMPLES / "notebooks").glob("*.ipynb"))


def cells(path: Path) -> Iterator[tuple[str, str]]:
    """(kind, text) of a notebook's cells."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        yield cell["cell_type"], "".join(cell["source"])


def notebook(path: Path) -> str:
    """A notebook as a page."""
    parts = [
        text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in cells(path)
    ]
    return "\n\n".join(parts) + f"\n\n*This is `examples/notebooks/{path.name}`.*\n"


def api() -> str:
    """Everything that `import sdfeel` offers, by the module in which it lives."""
    sdfeel = import_module("sdfeel")
    parts = ["# Python\n\nEverything here is used as `sdfeel.NAME`. Deeper modules may change."]
    order = sorted(sdfeel._HOMES, key=lambda home: [*FIRST, home].index(home))
    for home in order:
        names = sdfeel._HOMES[home]
        told = inspect.cleandoc(import_module(f"sdfeel.{home}").__doc__ or home)
        title = told.splitlines()[0].rstrip(".")
        parts.append(f"## {title}")
        parts += [f"::: sdfeel.{home}.{name}" for name in sorted(names)]
    return "\n\n".join(parts) + "\n"


def commands() -> str:
    """Every command with its arguments, options and examples."""
    homes = import_module("sdfeel.cli").COMMANDS
    parts = ["# Command line\n\n`sdfeel COMMAND --help` says the same."]
    for name, home in homes.items():
        parts += _command(f"sdfeel {name}", home.command(name), 2)
    return "\n\n".join(parts) + "\n"


def _command(name: str, command: Any, level: int) -> Iterator[str]:
    yield f"{'#' * level} {name}"
    yield _told(inspect.cleandoc(command.help or ""))
    rows = [_row(each) for each in command.params if not getattr(each, "hidden", False)]
    rows = [row for row in rows if row]
    if rows:
        yield "\n".join(["| argument or option | meaning |", "| --- | --- |", *rows])
    for own, below in getattr(command, "commands", {}).items():
        yield from _command(f"{name} {own}", below, level + 1)


def _told(text: str) -> str:
    """A docstring, with its examples as a block."""
    before, head, examples = text.partition("\n\nExample")
    if not head:
        return text
    lines = [line.strip() for line in examples.splitlines()[1:] if line.strip()]
    return f"{before}\n\n```console\n" + "\n".join(f"$ {line}" for line in lines) + "\n```"


def _row(each: Any) -> str:
    if "--help" in each.opts or "--install-completion" in each.opts:
        return ""
    names = ", ".join(f"`{name}`" for name in each.opts if name.startswith("-"))
    names = names or f"`{each.metavar or each.name.upper()}`"
    return f"| {names} | {(each.help or '').replace('|', chr(92) + '|')} |"
