"""Notebooks as pages of the site: their text, programs and outputs, as they were executed. Read by ``mkdocs.yml``."""

from pathlib import Path
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for every notebook."""
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        content = as_page(Path(notebook.abs_src_path or ""))
        files.append(File.generated(config, notebook.src_uri.replace(".ipynb", ".md"), content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Have links to a notebook lead to its page."""
    return markdown.replace(".ipynb)", ".md)")


def as_page(path: Path) -> str:
    """A notebook in Markdown."""
    return "\n\n".join(part for cell in nbformat.read(path, as_version=4).cells for part in _parts(cell)) + "\n"


def _parts(cell: Any) -> list[str]:
    if cell.cell_type == "markdown":
        return [cell.source]
    return [_fenced("python", cell.source), *(_output(output) for output in cell.outputs)]


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
