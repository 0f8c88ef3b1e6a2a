"""Writes the reference: a page for each public name, with its example first, and one for the command line.

    PYTHONPATH=. python -m docs.reference.make

A page has a block of ``examples.py`` and, below it, the docstring that the site's builder reads. ``GROUPS`` puts every
name of ``suture.__all__`` and ``suture_papers.__all__`` into a group of the navigation. ``tests/test_docs.py`` fails if
a name is missing, a page is stale, or the examples do not run.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import suture
import suture_papers
from suture.cli.main import list_groups
from suture.cli.options import Command

HERE = Path(__file__).parent
CONFIG = HERE.parents[1] / "mkdocs.yml"
PACKAGES: dict[str, ModuleType] = {"suture": suture, "suture_papers": suture_papers}

GROUPS: dict[str, str] = {
    "Networks and data": "suture: Network load_network load_data load_views Data Samples Preprocess",
    "Measuring": "suture: stitch curve matrix localise run forecast measure Plan Trial Measurement",
    "Choices": "suture: stitches fits controls baselines scores tasks traits changes",
    "Reading": "suture: explain plot report summary over_networks by_depth profiles onset",
    "Similarity": "suture: compare indices beside features",
    "Stitched networks": "suture: Stitched Seam load_stitched can_fold foldable_cuts",
    "Runs": "suture: Store Local Ray",
    "Models and errors": "suture: zoo errors SutureError",
    "Papers: experiments": "suture_papers: Study Claim Panel Where Beside Figure Decided Roles Result Scale SCALES "
    "STUDIES run_study load_result scale_named study_named verdict_of",
    "Papers: ingredients": "suture_papers: complexity networks recipes training variants",
}

#: The members of a module that a user wants first; the others follow in the module's order.
FIRST: dict[str, str] = {
    "suture.fits": "Converged Quick LeastSquares TaskLoss MatchActivations BestOf Random Narrower SoftLabels Adam SGD",
    "suture.stitches": "stitch_for Identity Permutation Diagonal Orthogonal LowRank Linear Conv StridedConv "
    "UpsampledConv MapsToTokens TokensToMaps TokensToTokens ConvLinear FullLinear PooledLinear FAMILIES",
    "suture.scores": "Score Accuracy CrossEntropy Confusion Named NetworkScore estimate estimate_penalty ScoreCard",
    "suture.changes": "Covered stack Variant",
    "suture_papers.recipes": "bansal2021 hernandez2022 hernandez2022_copy oxford2025 smith2024 smith2024_noise "
    "smith2024_vgg csiszarik2021 athanasiadis2025 mai2026 for_epochs RECIPES",
    "suture_papers.training": "train train_networks Recipe",
}

#: The page of the guide that a name belongs to.
GUIDE: dict[str, str] = {
    "Models": "how-to/model.md: Network load_network Preprocess zoo",
    "Data": "how-to/data.md: load_data Data Samples changes",
    "Tasks": "how-to/tasks.md: tasks",
    "Which fit?": "fits.md: fits",
    "Which stitch? Which controls?": "families.md: stitches controls baselines",
    "Your own score": "how-to/score.md: scores",
    "Traits": "traits.md: traits localise onset",
    "Reading a result": "reading.md: explain plot report stitch curve",
    "Several networks": "over-networks.md: matrix over_networks by_depth profiles summary",
    "Similarity indices": "indices.md: indices beside",
    "Your own matrices": "how-to/matrices.md: compare",
    "Two views of one thing": "how-to/views.md: load_views",
    "Features, not only layers": "how-to/features.md: features",
    "Folding": "folding.md: can_fold foldable_cuts",
    "Long runs and clusters": "how-to/long-runs.md: run forecast Store Local Ray",
    "Ten mistakes": "how-to/mistakes.md: errors SutureError",
}

#: The keywords that plans share, ``suture.measurement.trials.plans.Settings``.
KEYWORDS = """
| keyword | meaning |
| --- | --- |
| `data` | the [data](suture.Data.md) in three roles |
| `stitch` | a [family](suture.stitches.md) or its name, such as `"low-rank,rank=8"`; `None` suits the shapes |
| `fit` | a [fit](suture.fits.md) or its name, such as `"quick"`; `None` is `Converged()` |
| `scores` | [scores](suture.scores.md); `None` takes those of the data's task |
| `controls` | [controls](suture.controls.md) and [baselines](suture.baselines.md), or names: `"default"`, `"none"` |
| `seeds` | how many seeds of the stitch, or which |
| `network_seed` | a label for the table: the seed of the networks' training |
"""
WITH_KEYWORDS = ("suture.curve", "suture.matrix", "suture.localise")


def names(group: str) -> Iterator[str]:
    """Yield the full names of a group."""
    package, _, words = GROUPS[group].partition(": ")
    yield from (f"{package}.{word}" for word in words.split())


def examples() -> dict[str, str]:
    """Return the blocks of ``examples.py`` by the names in their marks, ``# %% suture.curve``."""
    text = (HERE / "examples.py").read_text(encoding="utf-8")
    found = re.split(r"^# %% (\S+)\n", text, flags=re.MULTILINE)[1:]
    return {name: block.strip() for name, block in zip(found[::2], found[1::2], strict=True)}


def members(name: str, module: ModuleType) -> list[str]:
    """Return the public names of a public module, those that a user wants first."""
    own = getattr(module, "__all__", None) or [
        key
        for key, one in vars(module).items()
        if not key.startswith("_") and getattr(one, "__module__", None) == module.__name__
    ]
    first = FIRST.get(name, "").split()
    return [*first, *(one for one in own if one not in first)]


def page(name: str, example: str) -> str:
    """Return the page of a public name."""
    package, _, last = name.partition(".")
    thing = getattr(PACKAGES[package], last)
    guide = [f"[{title}](../{path})" for title, path, own in _guides() if name in own]
    about = "The example continues those of [the reference](index.md)."
    about += "".join(f" Guide: {link}." for link in guide)
    text = f"# {name}\n\n```python\n{example}\n```\n\n{about}\n{KEYWORDS * (name in WITH_KEYWORDS)}\n"
    if isinstance(thing, ModuleType):
        listed = "".join(f"        - {one}\n" for one in members(name, thing))
        return text + _shown(name, f"show_root_heading: false\n      members:\n{listed}".rstrip())
    return text + _shown(name, "heading: Signature" if inspect.isroutine(thing) else "heading: In full")


def _guides() -> Iterator[tuple[str, str, list[str]]]:
    for title, text in GUIDE.items():
        path, _, words = text.partition(": ")
        yield title, path, [f"suture.{word}" for word in words.split()]


def _shown(name: str, options: str) -> str:
    return f"::: {name}\n    options:\n      heading_level: 2\n      show_root_toc_entry: false\n      {options}\n"


def command_line() -> str:
    """Return the page of the command line: every command with its examples and options, as its help has them."""
    text = (
        "# The command line\n\nEvery command and option, from the program's own help, which `suture COMMAND --help` "
        "prints.\n[From the command line](../how-to/command-line.md) is the introduction.\n"
    )
    for group, commands in list_groups().items():
        text += f"\n## {group.capitalize()}\n"
        for outer in commands:
            text += "".join(map(_command, outer.commands or (outer,)))
    return text


def _command(command: Command) -> str:
    text = f"\n### suture {command.name}\n\n{_escape(command.about or command.help)}\n"
    if command.examples:
        text += "\n```text\n" + "".join(f"{example}\n" for example in command.examples) + "```\n"
    if not command.options:
        return text
    text += "\n| argument | meaning |\n| --- | --- |\n"
    for option in command.options:
        settings = option.settings
        value = settings.get("metavar")
        value = value[0] if isinstance(value, tuple) else value
        name = str(value or option.names[0]) if not option.names[0].startswith("-") else option.names[0]
        takes = f" {value}" if value and option.names[0].startswith("-") else ""
        default = settings.get("default")
        told = "" if default in (None, False, (), []) or "==SUPPRESS==" in str(default) else f" (default: `{default}`)"
        meaning = _escape(str(settings.get("help") or ""))
        text += f"| `{name}{takes}` | {meaning}{told} |\n"
    return text


def _escape(text: str) -> str:
    words = " ".join(text.replace("%%", "%").split())
    return words.replace("|", "\\|").replace("*", "\\*").replace("_", "\\_").replace("<", "&lt;")


def index() -> str:
    """Return the reference's first page."""
    text = (HERE / "index.md").read_text(encoding="utf-8")
    rows = "".join(
        f"| {group} | {', '.join(f'[`{name}`]({name}.md)' for name in names(group))} |\n" for group in GROUPS
    )
    listed = f"<!-- names -->\n\n| group | names |\n| --- | --- |\n{rows}\n<!-- end -->"
    text = re.sub(r"<!-- names -->.*?<!-- end -->", lambda _: listed, text, flags=re.DOTALL)
    start = f"<!-- start -->\n\n```python\n{examples()['start']}\n```\n\n<!-- end of start -->"
    return re.sub(r"<!-- start -->.*?<!-- end of start -->", lambda _: start, text, flags=re.DOTALL)


def navigation() -> str:
    """Return ``mkdocs.yml`` with the pages of the names in it."""
    text = CONFIG.read_text(encoding="utf-8")
    for mark, indent, papers in (("names", " " * 6, False), ("names of the papers", " " * 10, True)):
        lines = [f"{indent}# {mark}"]
        for group in GROUPS:
            if group.startswith("Papers") is papers:
                lines.append(f"{indent}- {group.removeprefix('Papers: ').capitalize()}:")
                lines += [f"{indent}    - {name}: reference/{name}.md" for name in names(group)]
        lines.append(f"{indent}# end of {mark}")
        pattern = rf"^{indent}# {mark}\n.*?^{indent}# end of {mark}$"
        text = re.sub(pattern, _as_it_is("\n".join(lines)), text, flags=re.DOTALL | re.MULTILINE)
    return text


def _as_it_is(text: str) -> Callable[[object], str]:
    return lambda _: text


def files() -> dict[Path, str]:
    """Return every generated file with its text."""
    found = examples()
    pages = {HERE / f"{name}.md": page(name, found[name]) for group in GROUPS for name in names(group)}
    return pages | {
        HERE / "command-line.md": command_line(),
        HERE / "index.md": index(),
        CONFIG: navigation(),
    }


def main() -> None:
    """Write the files, and remove the pages of names that are gone."""
    made = files()
    for path in HERE.glob("suture*.md"):
        if path not in made:
            path.unlink()
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
