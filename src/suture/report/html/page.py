"""The report: one self-contained HTML page of a run, of studies, or of two runs compared.

Nothing is fetched: style, script and numbers are inside, and a Content-Security-Policy forbids the rest. Whatever
comes from users is escaped. Every figure has a table behind it with the same numbers, so the page reads without a
mouse, without eyes and without scripts.
"""

import base64
import hashlib
import shlex
from collections.abc import Sequence
from importlib.resources import files
from itertools import count
from pathlib import Path

from suture.common.atomic import whole
from suture.common.errors import OutputError, SutureError
from suture.measurement.tables.explain import Explanation
from suture.report.html import compare_runs as differences
from suture.report.html import figures as evidence
from suture.report.html import parts, words
from suture.report.html import studies as claimed
from suture.report.html.charts import Chart
from suture.report.html.escaping import safe, script_data
from suture.report.html.runs import Run
from suture.report.terminal import store as stores

Page = tuple[str, str, Sequence[str], Sequence[str], list[Chart]]
"""Title, what was asked, the verdict's sentences, the sections, the charts in order."""


def render(run: Run, other: Run | None = None) -> str:
    """Write the page of a run, or of two runs compared. Raises ``DataError`` where two have nothing in common."""
    if other is not None:
        page = _compared(run, other)
    elif run.results:
        page = _of_studies(run)
    else:
        page = _of_run(run)
    return _document(*page)


def write(page: str, path: str | Path) -> Path:
    """Write a page to a file, whole or not at all. Raises ``OutputError``."""
    path = Path(path).expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as temporary:
            temporary.write_text(page, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}; name another file with --out") from error
    return path


_NOTHING = "Nothing can be concluded: no trial gave a score with a penalty."

# --- what a page holds ------------------------------------------------------------------------------------------------


def _of_run(run: Run) -> Page:
    found = evidence.of_run(run)
    numbers, charts = count(1), list(found.charts)
    explained = words.explained(run, run.table)
    said = words.verdict(found.said, None if found.title else explained) or [_NOTHING]
    sections = [
        _note(words.state(run), *found.rest),
        parts.section("What was measured", parts.figures(charts, numbers), id="figures"),
        *_conclusions(explained),
        _failures(run),
        *_evidence(run),
    ]
    asked = words.asked(run.table, found.asked)
    return found.title or words.title(run.table), asked, said, sections, charts


def _conclusions(explained: Explanation | None) -> list[str]:
    if explained is None:
        return []
    return [
        parts.section("What holds", parts.sentences(explained.holds)),
        parts.section("What must not be concluded", parts.sentences(explained.not_concluded)),
        parts.section("What was not tried", parts.sentences(explained.missing)),
    ]


def _of_studies(run: Run) -> Page:
    charts: list[Chart] = []
    sections = list(claimed.sections(run.results, count(1), charts))
    single = run.results[0] if len(run.results) == 1 else None
    title = single[0].title if single else f"{len(run.results)} studies"
    asked = f"{single[0].question} ({single[0].paper}, {single[0].source}; {single[0].id})" if single else ""
    listed = ", ".join(study.id for study, _ in run.results)
    facts = claimed.card(single[1]) if single else {}
    ending = [parts.section("Cost", parts.facts(facts)), *_evidence(run, cost=single is None)]
    said = claimed.verdict(run.results)
    return title, asked or f"What {listed} measured.", said, [*sections, _failures(run), *ending], charts


def _compared(first: Run, second: Run) -> Page:
    same = first.name == second.name
    names = (str(first.path), str(second.path)) if same else (first.name, second.name)
    found = differences.compare(first, second, names)
    asked = f"Two runs at the seams that both measured. {names[0]}: {words.asked(first.table)}"
    asked += f" {names[1]}: {words.asked(second.table)}"
    sections = [
        parts.section("What both measured", parts.figures(found.charts, count(1)), id="figures"),
        parts.section("What differs between the two", _settings_apart(first, second, names)),
        *(_failures(run, f" in {name}") for run, name in zip((first, second), names, strict=True)),
    ]
    for run, name in zip((first, second), names, strict=True):
        sections += _evidence(run, of=f" of {name}")
    return f"{names[0]} and {names[1]} compared", asked, found.said, sections, list(found.charts)


def _settings_apart(first: Run, second: Run, names: tuple[str, str]) -> str:
    ours, theirs = words.settings(first.table), words.settings(second.table)
    rows = []
    for name in dict.fromkeys((*ours, *theirs)):
        both = [_in_words(known.get(name, "")) for known in (ours, theirs)]
        rows += [(name, *both)] if both[0] != both[1] else []
    if not rows:
        return "<p>Networks, stitches, fits, data and controls go by the same names in both.</p>"
    return parts.words("What differs, by what the tables say", ("", *names), rows)


def _in_words(value: str | Sequence[str]) -> str:
    return value if isinstance(value, str) else ", ".join(value)


def _failures(run: Run, of: str = "") -> str:
    if not len(run.table):
        return ""
    failed = list(words.failures(run.table))
    if not failed:
        return ""
    many = f"{len(failed):,} of {run.table['trial'].nunique():,} trials failed; their places are empty."
    table = parts.words("Every trial that failed, and why", ("Seam", "Control", "Seed", "Error"), failed)
    return parts.section(f"What failed{of}", f'<p class="note failed">{safe(many)}</p>', table)


def _evidence(run: Run, of: str = "", cost: bool = True) -> list[str]:
    """Cost, versions, and how to repeat it."""
    table = run.table
    known = words.cost(table) if cost else {}
    notes = [f"{note} ({times} ×)" for note, times in run.notes.items()]
    made = [parts.section(f"Cost{of}", parts.facts(known))]
    made += [parts.section(f"Versions and machine{of}", parts.facts(words.machines(run.machines)))]
    made += [parts.section(f"Notes of the trials{of}", parts.sentences(notes))]
    settings = words.settings(table) if len(table) and not run.results else {}
    seeds = words.seeds(table) if len(table) else {}
    return [*made, parts.section(f"How to repeat it{of}", _command(run), parts.facts(settings | seeds | _kept(run)))]


def _command(run: Run) -> str:
    if run.command is not None:
        return f"<pre>{safe(stores.broken(shlex.split(run.command)))}</pre>"
    if run.state is None:
        return "".join(
            f"<pre>{safe(f'suture run {study.id} --scale {result.scale} --out FOLDER')}</pre>"
            for study, result in run.results
        )
    return (
        "<p>It was begun in Python, so the folder knows what was measured and not the code; with the same plan, this "
        f"measures nothing twice:</p><pre>{safe(f'suture.run(plan, store={str(run.path)!r})')}</pre>"
    )


def _kept(run: Run) -> dict[str, str | Sequence[str]]:
    """The folder, and the fingerprints of what went in."""
    names = ("sender", "receiver", "fit data", "score data")
    prints = [f"{name}: {', '.join(run.settings[name])}" for name in names if run.settings.get(name)]
    changed = f"{run.state.last_change:%Y-%m-%d %H:%M %Z}" if run.state is not None else ""
    return {"Fingerprints": prints, "Folder": str(run.path), "Last change": changed}


def _note(*said: str) -> str:
    return "".join(f'<p class="note">{safe(one)}</p>' for one in said if one)


# --- the document -----------------------------------------------------------------------------------------------------


def _document(title: str, asked: str, said: Sequence[str], sections: Sequence[str], charts: list[Chart]) -> str:
    own = files("suture.report.html")
    style = (own / "report.css").read_text(encoding="utf-8")
    scripts = [_plotly(), (own / "report.js").read_text(encoding="utf-8")] if charts else []
    hashes = " ".join(_hash(script) for script in scripts) or "'none'"
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    first, *others = said or [""]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="generator" content="Suture">
<title>{safe(title)} – Suture</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<a class="skip" href="#verdict">Skip to the verdict</a>
<header class="page">
<p class="kicker">Suture: model stitching</p>
<h1 dir="auto">{safe(title)}</h1>
<p class="lead">{safe(asked)}</p>
</header>
<main>
<section class="verdict" id="verdict" aria-labelledby="verdict-title">
<h2 id="verdict-title">Verdict</h2>
<p class="first">{safe(first)}</p>
{parts.sentences(others)}
</section>
{chr(10).join(filter(None, sections))}
</main>
<footer class="page"><p>Made by Suture. This page is one file: it fetches nothing and sends nothing.</p></footer>
<script type="application/json" id="charts">{script_data([chart.plain() for chart in charts])}</script>
{"".join(f"<script>{script}</script>" for script in scripts)}
</body>
</html>
"""


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _plotly() -> str:
    """The script that draws, from the package ``plotly``, such that no tag ends inside it."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise SutureError("a report needs plotly, which is not installed: pip install 'suture[report]'") from error
    script: str = get_plotlyjs()
    return script.replace("</script", "<\\/script").replace("\r\n", "\n").replace("\r", "\n")
