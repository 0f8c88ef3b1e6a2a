"""The pages on evidence say what is there: programs run, tables name every index and measure."""

import re
from pathlib import Path

import suture
from suture.measurement.indices import INDICES
from suture_papers import complexity

DOCS = Path(__file__).parents[3] / "docs"


def test_the_programs_of_the_page_run(capsys) -> None:
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", (DOCS / "evidence.md").read_text(encoding="utf-8"), re.DOTALL):
        exec(block, names)
    assert "What must not be concluded" in capsys.readouterr().out
    assert {"linear_cka(debiased=True)", "mutual_knn"} <= set(suture.beside(names["table"], names["similarities"]))


def test_every_index_has_a_line_with_its_bounds() -> None:
    page = (DOCS / "indices.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("| `") and line.count("|") == 5]
    for name, index in INDICES.items():
        (line,) = (one for one in lines if f"`{name}`" in one.split("|")[1])
        low, high = ("π/2" if bound > 1.5 else f"{bound:.0f}".replace("-", "−") for bound in index.bounds)
        assert re.fullmatch(rf"{low}( \(alike\))? to {high}(; .*)?", line.split("|")[4].strip()), line
        shifts = "translation" in index.invariances
        assert ("shifts" in line.split("|")[3]) == (shifts or name == "mutual_knn"), line


def test_every_measure_has_a_line() -> None:
    page = (DOCS / "papers" / "complexity.md").read_text(encoding="utf-8")
    lines = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    every = (*complexity.LANDSCAPE, *complexity.CURVATURE, *complexity.SIZE, *complexity.RANKS)
    for measure in every:
        assert sum(f"`{type(measure).__name__}`" in line for line in lines) == 1
