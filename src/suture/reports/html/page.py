"""The report: one self-contained HTML page of a run, of studies, or of two runs compared.

Nothing is fetched and nothing runs: figures are SVG inside the page, and a Content-Security-Policy allows its own style
and nothing else. The template escapes whatever it is given. Every figure has tables behind it with the same numbers, so
the page reads without a mouse and without eyes.
"""

import base64
import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suture.common.errors import OutputError, SutureError
from suture.common.plugins import added
from suture.measurement.tables.read import read_scores
from suture.measurement.tables.say import headlines
from suture.reports.html import compare_runs, words
from suture.reports.html.runs import Run
from suture.reports.style import with_minus
from suture.reports.terminal.store import broken
from suture.runs.store.files import writing_to

if TYPE_CHECKING:
    from suture.reports.html.evidence import Drawn

Block = tuple[str, Any]  #: a kind of block of the template, and what it shows


@dataclass(frozen=True)
class Section:
    """A part of the page under a heading."""

    title: str
    blocks: Sequence[Block]
    id: str = ""


@dataclass(frozen=True)
class Page:
    """The content of a page, from the top down."""

    title: str
    asked: str
    verdict: Sequence[str]
    sections: Sequence[Section]
    warned: Sequence[str] = ()
    figure: "Drawn | None" = None  #: with one the title is the verdict, and the figure stands beside it
    strip: words.Strip | None = None
    tab: str = ""  #: what it is called for short, if not by its title
    needs: str = ""  #: what the title needs to be true


def check_file(file: str | Path) -> Path:
    """Return the path of a file for a page. Raises ``OutputError`` for a folder, and for a file that is not a page."""
    path = Path(file).expanduser()
    if path.is_dir():
        raise OutputError(f"{path} is a folder; name a file, such as {path / 'report.html'}")
    if path.is_file():
        with writing_to(path.parent), path.open("rb") as opened:
            begins = opened.read(1000).lstrip().lower()
        if begins and not begins.startswith(b"<!doctype html"):
            raise OutputError(f"{path} is a file and not a page, and would be lost; name another, such as report.html")
    return path


def render(run: Run, other: Run | None = None) -> str:
    """Return the page of a run, or of two runs compared. Raises ``DataError`` if two have nothing in common."""
    if other is not None:
        return _fill(_page_of_two(run, other))
    for known in added("studies").values() if run.results else ():
        return _fill(known.make_page(run))
    return _fill(_page_of_run(run))


# --- what a page says -------------------------------------------------------------------------------------------------


def _page_of_run(run: Run) -> Page:
    from suture.reports.html.evidence import evidence  # draws, and matplotlib takes long to import

    readings = read_scores(run.table)
    first = readings[0]
    found = evidence(readings, run.similarities)
    explained = words.explained(run, readings)
    # The first sentence is the title of a page with a figure, and what it needs stands below it.
    sentence, *said = [one for one in found.said if one] or [""]
    is_first = bool(said) and not found.title and said[:1] == headlines(first)[1:2]
    needs = said.pop(0) if is_first else ""
    strip = words.answers(first) if not found.title else None
    front, *rest = found.figures if sentence and found.figures else (None, *found.figures)
    is_grid = first.kind == "matrix"  # the figure beside the title has its marks
    sections = [
        Section("", [("note", note) for note in (words.state(run), *found.rest) if note]),
        Section(
            "What was measured" if front is None else "Further figures", [("figure", one) for one in rest], "figures"
        ),
    ]
    if explained is not None:
        questions = words.lay_words("The five questions", ("Question", "Answer"), explained.answers)
        sections += [
            Section(
                "Question by question",
                [("table", questions), *([("strip", strip)] if strip and is_grid else [])] if explained.answers else [],
            ),
            Section("What must not be concluded", sentences(explained.not_concluded)),
            Section("What was not tried", sentences(explained.missing)),
        ]
    said = said if front is not None else [*first.warnings, *filter(None, [sentence, needs]), *said]
    said = said or ([] if front else ["Nothing can be concluded: no trial gave a score with a penalty."])
    called = found.title or words.title(run.table)
    title = f"{sentence.rstrip('.')}." if front is not None else called
    sections = [*sections, list_failures(run), *appendix(run)]
    asked = words.say_asked(run.table, found.asked)
    return Page(title, asked, said, sections, first.warnings, front, None if is_grid else strip, called, needs)


def _page_of_two(first: Run, second: Run) -> Page:
    same = first.name == second.name
    names = (str(first.path), str(second.path)) if same else (first.name, second.name)
    differences, said, before = compare_runs.compare(first, second, names)
    asked = "Two runs at the seams that both measured."
    asked += "".join(f" {name}: {words.say_asked(run.table)}" for name, run in zip(names, (first, second), strict=True))
    ours, theirs = words.settings(first.table), words.settings(second.table)
    apart = [(name, ", ".join(ours[name]), ", ".join(theirs[name])) for name in ours if ours[name] != theirs[name]]
    alike = ("text", "Networks, stitches, fits, data and controls go by the same names in both.")
    table = ("table", words.lay_words("What differs, by what the tables say", ("", *names), apart))
    called = f"{names[0]} and {names[1]} compared"
    said = said or ["Neither run has a number there to compare."]
    sections = [
        Section("", [("note", note) for note in before]),
        Section("Seam by seam", [("numbers", one) for one in differences]),
        Section("What differs between the two", [table if apart else alike]),
    ]
    for run, name in ((first, names[0]), (second, names[1])):
        sections += [list_failures(run, f" in {name}"), *appendix(run, of=f" of {name}")]
    return Page(called, asked, said, sections)


def appendix(run: Run, of: str = "", cost: bool = True) -> list[Section]:
    """Return the sections on the cost of a run, its machines, and how to repeat it."""
    known = dict(words.settings(run.table) if len(run.table) and not run.results else {})
    known |= words.seeds(run.table) if len(run.table) else {}
    names = ("sender", "receiver", "fit data", "score data")
    known["Fingerprints"] = [f"{name}: {', '.join(run.settings[name])}" for name in names if run.settings.get(name)]
    known["Folder"] = [str(run.path)] if run.machines or run.state is not None else []  # a table has none
    known["Last change"] = [f"{run.state.last_change:%Y-%m-%d %H:%M %Z}"] if run.state is not None else []
    return [
        Section(f"Cost{of}", facts(words.cost(run.table)) if cost else []),
        Section(f"Versions and machine{of}", facts(words.machines(run.machines))),
        Section(f"Notes of the trials{of}", sentences([f"{note} ({times} ×)" for note, times in run.notes.items()])),
        Section(f"How to repeat {of.removeprefix(' of ') or 'it'}", [*_repeat(run), *facts(known)]),
    ]


def _repeat(run: Run) -> list[Block]:
    if run.command is not None:
        return [("command", broken(shlex.split(run.command)))]
    if run.state is None:
        return [("command", known.say_command(*one)) for known in added("studies").values() for one in run.results]
    said = (
        "The run was started from Python: the folder knows what was measured, but not the code. Run the same plan "
        "again, and nothing is measured twice:"
    )
    return [("text", said), ("command", f"suture.run(plan, store={str(run.path)!r})")]


def list_failures(run: Run, of: str = "") -> Section:
    """Return the section of the trials that failed, and why."""
    failed = list(words.failures(run.table)) if len(run.table) else []
    if not failed:
        return Section("", [])
    many = f"{len(failed):,} of {run.table['trial'].nunique():,} trials failed; their places are empty."
    table = words.lay_words("Every trial that failed, and why", ("Seam", "Control", "Seed", "Error"), failed)
    return Section(f"What failed{of}", [("note", many), ("table", table)])


def sentences(said: Sequence[str]) -> list[Block]:
    """Return the block of some sentences, if there are any."""
    return [("sentences", said)] if said else []


def facts(known: Mapping[str, Sequence[str]]) -> list[Block]:
    """Return the block of named facts, without those that have no value."""
    held = {name: [value for value in values if value] for name, values in known.items()}
    held = {name: values for name, values in held.items() if values}
    return [("facts", held)] if held else []


# --- the document -----------------------------------------------------------------------------------------------------


def _fill(page: Page) -> str:
    """Fill the template: figures are numbered and drawn, and only the style that is there applies."""
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise SutureError(
            f"a report needs jinja2, which is not installed ({error}): pip install 'suture[report]'"
        ) from error
    from suture.common.visible import visible
    from suture.reports.html.svg import draw

    own = files("suture.reports.html")
    style = (own / "report.css").read_text(encoding="utf-8")
    several = sum(kind == "figure" for section in page.sections for kind, _ in section.blocks) + bool(page.figure) > 1
    numbers = count(1)

    def drawn(shown: "Drawn") -> dict[str, Any]:
        number, chart = next(numbers), shown.chart
        views = {"wide" if shown.narrow else "scrolled": shown.wide, "narrow": shown.narrow}
        label = f"{chart.title}. The tables below the figure hold its numbers."
        plots = {
            name: Markup(draw(make(), label, f"{name[0]}{number}-")) for name, make in views.items() if make is not None
        }
        aside = dict.fromkeys(line.name for line in chart.measures[0].lines if line.hidden and line.has_values)
        return {"chart": chart, "number": number, "plots": plots, "aside": list(aside), "titled": several}

    front = drawn(page.figure) | {"titled": False} if page.figure is not None else None
    sections = [
        replace(
            section,
            blocks=[(kind, drawn(one) if kind == "figure" else one) for kind, one in section.blocks],
        )
        for section in page.sections
        if section.blocks
    ]
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else visible(value),
    )
    html = environment.from_string((own / "page.html").read_text(encoding="utf-8")).render(
        title=with_minus(page.title),
        tab=page.tab or page.title,
        asked=page.asked,
        needs=with_minus(page.needs),
        verdict=list(map(with_minus, page.verdict)),
        warned=page.warned,
        answers=page.strip,
        front=front,
        sections=sections,
        style=Markup(style),
        policy=Markup(_POLICY.format(base64.b64encode(hashlib.sha256(style.encode()).digest()).decode())),
    )
    return html.lstrip()


#: Of styles the one that is in the page, and images inside it, which very large matrices are.
_POLICY = "default-src 'none'; style-src 'sha256-{}'; img-src data:; base-uri 'none'; form-action 'none'"
