"""Notebooks on the site: a line ``[[FILE.ipynb]]`` of a page becomes its text, programs and outputs, as executed.

A Python-Markdown extension, which ``mkdocs.yml`` names.
"""

import re
from pathlib import Path
from typing import Any

import nbformat
from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor

HERE = Path(__file__).parent
LONG = 8  #: lines; a longer program is folded, so that a reader sees what came out beside what is said of it


class _Notebooks(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        """Replace the lines that name a notebook."""
        return re.sub(r"^\[\[(\w+\.ipynb)\]\]$", _as_page, "\n".join(lines), flags=re.MULTILINE).split("\n")


class Notebooks(Extension):
    """Show notebooks before anything else reads the page, so that their headings and programs are the page's own."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Register with Markdown."""
        md.preprocessors.register(_Notebooks(md), "notebooks", 100)


def _as_page(found: re.Match[str]) -> str:
    cells = nbformat.read(HERE / found[1], as_version=4).cells
    return "\n\n".join(part for cell in cells for part in _parts(cell))


def _parts(cell: Any) -> list[str]:
    if cell.cell_type == "markdown":
        return [cell.source]
    program = _fenced("python", cell.source)
    if (lines := cell.source.count("\n") + 1) > LONG:
        program = f'<details markdown="1">\n<summary>{lines} lines of Python</summary>\n\n{program}\n\n</details>'
    said = (output for output in cell.outputs if output.get("name") != "stderr")  # which has the progress
    return [program, *(_output(output) for output in said)]


def _output(output: Any) -> str:
    if output.output_type == "stream":
        return _fenced("text", output.text)
    if "image/png" in output.data:
        return f'<img class="output" alt="" src="data:image/png;base64,{output.data["image/png"].strip()}">'
    if "text/html" in output.data:
        return f'<div class="output">{output.data["text/html"]}</div>'
    return _fenced("text", output.data["text/plain"])


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"
