#!/usr/bin/env python3
"""Make the notebooks of their programs, and execute them.

    python docs/notebooks/make.py            writes stitching.ipynb, with its outputs
    python docs/notebooks/make.py --check    executes it, with fits of two steps; fails where a cell does

A program is divided by lines ``# %%``, and ``# %% [markdown]`` for text. Needs the extra ``docs``.
"""

import re
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

HERE = Path(__file__).parent
BRIEF = """
from functools import partial

import suture
from suture.fits import Converged, Quick

Converged.fit = lambda self, *given: Quick(steps=2).fit(*given)
suture.run = partial(suture.run, on=suture.Local(workers=1))
"""


def notebook_of(program: Path) -> nbformat.NotebookNode:
    """The notebook of a program, before it was executed."""
    cells = []
    for part in re.split(r"^# %%", program.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        kind, _, body = part.partition("\n")
        text = body.strip()
        if kind.strip() == "[markdown]":
            cells.append(new_markdown_cell(re.sub(r"^# ?", "", text, flags=re.MULTILINE)))
        else:
            cells.append(new_code_cell(text))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return new_notebook(cells=cells, metadata=kernel)


def main() -> None:
    """Execute each notebook; write it unless it is only checked."""
    for program in sorted(HERE.glob("*.py")):
        if program.name in ("make.py", "pages.py"):
            continue
        notebook = notebook_of(program)
        if "--check" in sys.argv:
            notebook.cells.insert(0, new_code_cell(BRIEF))
        NotebookClient(notebook, timeout=600, record_timing=False).execute()
        notebook.metadata.pop("language_info", None)
        if "--check" not in sys.argv:
            nbformat.write(notebook, program.with_suffix(".ipynb"))


if __name__ == "__main__":
    main()
