"""The README and the pages of ``docs/`` say what is so: their programs run, their commands parse, their links lead
somewhere, and the site builds.

The ``python`` blocks of a page run in order, in one namespace and one empty folder; a block with a ``title`` is a file
of that name. ``<!-- not run: why -->`` before a block leaves it out. Commands in ``console`` blocks are parsed by the
command line's own parser, and those after ``<!-- run -->`` are run; after ``<!-- refused -->`` one is run and says the
rest of its block. Pages that speak of large runs are run *in small*: their data, networks and plans are what they say,
but data are stand-ins for CIFAR-10, networks narrow, curves have two cuts, fits and trainings two steps. Everywhere the
default fit ends after its first rounds. Tests run side by side, so each runs its trials in one process.
"""

import importlib
import io
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from docs.reference import make as make_reference

import suture
import suture.zoo
from benchmarks import __main__ as benchmarks
from benchmarks import gpu
from suture import load_network
from suture.cli.main import Parser, main, parser
from suture.common.errors import SutureError
from suture.common.names import make
from suture.core.network.cuts import shared_cuts
from suture.fits import Converged, Quick
from suture.measurement.trials.plans import Plan, curve, matrix
from suture.runs.runners import run, stitch
from suture_papers import networks
from suture_papers.base.scale import _shorten, stand_in
from suture_papers.networks.base_model import BaseModel

ROOT = Path(__file__).parents[1]
ELSEWHERE = {"docs/evidence.md"}  #: whose programs papers/tests/reports/test_evidence_page.py runs
NOTEBOOKS = ROOT / "docs" / "notebooks"
PAGES = {
    str(p.relative_to(ROOT)): p
    for p in (
        ROOT / "README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    )
}
GENERATED = {str(path.relative_to(ROOT)) for path in make_reference.files() if path.suffix == ".md"}
GIVEN = ("curve", "matrix")  #: what `suture plan` and others take a command's arguments after

RESNET = "suture.load_network('zoo:resnet,blocks=(1, 1, 1),width=4', example=data.example, name=n)"
TWO = f"a, b = ({RESNET} for n in 'ab')\n"
VIT = "suture.load_network('zoo:vit,dim=8,depth=6,heads=2', example=data.example, name='vit')"
START = "import torch, suture\ndata = suture.load_data('cifar10')\n"
DIGITS = "import suture\nfrom suture.data import load_data\n"
DIGITS += "suture.load_data = lambda name: load_data(name).limited(fit=120)\n"
#: What a page that is run in small has before its first block.
IN_SMALL = {
    "docs/families.md": START + TWO.replace("(1, 1, 1)", "(1, 2, 2)") + f"v = {VIT}\n",
    "docs/fits.md": START + TWO,
    "docs/folding.md": START + TWO.replace("(1, 1, 1)", "(2, 2)"),
    "docs/gallery.md": DIGITS,
    "docs/papers/training.md": START,
    "docs/your-models.md": DIGITS,
}


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, title, text and line, and the comment directly before it."""

    language: str
    title: str
    text: str
    line: int
    comment: str


def blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    text = PAGES[page].read_text(encoding="utf-8")
    pattern = r"(?:^<!-- *(?P<comment>[^\n]*?) *-->\n)?^```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n"
    for found in re.finditer(pattern + r"(?P<text>.*?)^```$", text, re.DOTALL | re.MULTILINE):
        line = text.count("\n", 0, found.start("text"))
        yield Block(found["language"], found["title"] or "", found["text"], line, found["comment"] or "")


def commands(block: Block) -> Iterator[str]:
    """The commands of a console block, each on one line."""
    for line in block.text.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            yield line[2:]


def message(block: Block) -> str:
    """What a console block shows behind its one command, whose lines end in a backslash but the last."""
    return re.sub(r"\A\$ (?:.*\\\n)*.*\n", "", block.text)


# --- programs ---------------------------------------------------------------------------------------------------------


def shortened(fit: Any) -> Any:
    """A fit of two steps, and so are those that it is made of."""
    if isinstance(fit, Converged):
        return Quick(steps=2)
    made = {f.name: getattr(fit, f.name) for f in fields(fit)} if is_dataclass(fit) else {}
    new: dict[str, Any] = {n: shortened(v) for n, v in made.items() if isinstance(v, suture.fits.Fit)}
    new |= {n: tuple(map(shortened, v)) for n, v in made.items() if isinstance(v, tuple) and n == "fits"}
    new |= {n: 2 for n in ("steps", "check") if isinstance(made.get(n), int)}
    return replace(fit, **new) if new else fit


@pytest.fixture
def in_small(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make what is large small: see the head of this file."""

    def small_curve(a: Any, b: Any, *, at: Any = None, **settings: Any) -> Plan:
        cuts = at if at is not None else [shared_cuts(a.cuts, b.cuts)[i] for i in (1, -2)]
        return curve(a, b, at=cuts, **fewer(settings))

    def small_matrix(senders: Any, *receivers: Any, cuts: Any = None, **settings: Any) -> Plan:
        chosen = cuts if cuts is not None else {one.name: one.cuts.names[1] for one in senders}
        return matrix(senders, *receivers, cuts=chosen, **fewer(settings))

    def fewer(settings: dict[str, Any]) -> dict[str, Any]:
        fit = settings.get("fit") or Converged()
        return settings | {"seeds": 1, "fit": shortened(make("fit", fit) if isinstance(fit, str) else fit)}

    def small_stitch(*networks: Any, fit: Any = None, **settings: Any) -> Any:
        return stitch(*networks, fit=shortened(fit or Converged()), **({"controls": ()} | settings))

    def small_load(source: str, *given: Any, **settings: Any) -> Any:
        return load_network(source.replace("timm:resnet18", "timm:resnet18,channels=(4,8,8,16)"), *given, **settings)

    def small() -> None:
        monkeypatch.setattr(suture, "load_network", small_load)
        monkeypatch.setattr(suture, "load_data", stand_in)
        monkeypatch.setattr(suture, "curve", small_curve)
        monkeypatch.setattr(suture, "matrix", small_matrix)
        monkeypatch.setattr(suture, "stitch", small_stitch)
        monkeypatch.setattr(networks, "BaseModel", lambda *given, **settings: _shorten(BaseModel(*given, **settings)))

    return small


def programs(page: str) -> bool:
    return any(block.language == "python" or block.comment in ("run", "refused") for block in blocks(page))


@pytest.mark.docs
@pytest.mark.filterwarnings("default::suture.common.errors.LeftOut")  # as the pages say
@pytest.mark.parametrize("page", [page for page in PAGES if page not in ELSEWHERE | GENERATED and programs(page)])
def test_the_programs_of_a_page_run(
    page: str, in_small: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(Converged, "fit", lambda self, *given: Quick(steps=2).fit(*given))
    before = set(sys.modules)
    monkeypatch.setattr(
        suture, "run", lambda plan, **settings: run(plan, **({"on": suture.Local(workers=1)} | settings))
    )
    monkeypatch.setattr(sys, "stderr", said := io.StringIO())
    names: dict[str, Any] = {"__name__": "page"}
    if page in IN_SMALL:
        in_small()
        exec(IN_SMALL[page], names)
    for block in blocks(page):
        if block.comment.startswith("not run:"):
            continue
        if block.title:
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            exec(compile("\n" * block.line + block.text, str(PAGES[page]), "exec"), names)
        elif block.comment == "run":
            for command in commands(block):
                assert main(shlex.split(command, comments=True)[1:]) == 0, command
        elif block.comment == "refused":
            (command,) = commands(block)
            said.truncate(said.seek(0))
            assert main(shlex.split(command)[1:]) == 2, command
            assert said.getvalue().splitlines()[-1].split() == message(block).split()
    for name in set(sys.modules) - before:
        if (tmp_path / f"{name}.py").exists():
            del sys.modules[name]


# --- the reference ----------------------------------------------------------------------------------------------------


def test_the_reference_has_every_public_name_and_is_not_stale() -> None:
    grouped = [name for group in make_reference.GROUPS for name in make_reference.names(group)]
    public = {f"{name}.{one}" for name, package in make_reference.PACKAGES.items() for one in package.__all__}
    assert sorted(grouped) == sorted(public)
    assert set(make_reference.examples()) == {"start", *public}
    made = make_reference.files()
    assert {path.name for path in made if path.name.startswith("suture")} == {
        path.name for path in make_reference.HERE.glob("suture*.md")
    }
    stale = [path.name for path, text in made.items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "PYTHONPATH=. python -m docs.reference.make writes them"


@pytest.mark.docs
def test_the_examples_of_the_reference_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They run in order in one namespace; the default fit ends after its first rounds, as on the pages."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Converged, "fit", lambda self, *given: Quick(steps=2).fit(*given))
    names: dict[str, Any] = {"__name__": "examples"}
    for name, block in make_reference.examples().items():
        exec(compile(block, f"example of {name}", "exec"), names)


def test_what_is_not_run_says_why() -> None:
    left_out = [b.comment for page in PAGES for b in blocks(page) if b.comment.startswith("not run")]
    assert all(re.fullmatch(r"not run: \S.{20,}", comment) for comment in left_out)
    assert len(left_out) <= 5  # as few as can be: three are of trackers, which are no dependencies


def test_what_is_run_in_small_is_there() -> None:
    assert set(IN_SMALL) | ELSEWHERE <= set(PAGES)


@pytest.mark.docs
def test_the_notebook_is_what_its_program_says() -> None:
    nbformat = pytest.importorskip("nbformat", reason="the extra `docs` is not installed")
    kept = nbformat.read(NOTEBOOKS / "stitching.ipynb", as_version=4)
    sys.path.insert(0, str(NOTEBOOKS))
    try:
        made = importlib.import_module("make").notebook_of(NOTEBOOKS / "stitching.py")
    finally:
        sys.path.pop(0)
    assert [(cell.cell_type, cell.source) for cell in kept.cells] == [(c.cell_type, c.source) for c in made.cells]
    programs = [cell for cell in kept.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in programs] == list(range(1, len(programs) + 1))  # in order, from the start
    assert (NOTEBOOKS / "stitching.ipynb").stat().st_size < 200_000


@pytest.mark.docs
def test_the_notebook_runs() -> None:
    pytest.importorskip("nbclient", reason="the extra `docs` is not installed")
    command = [sys.executable, str(NOTEBOOKS / "make.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- commands ---------------------------------------------------------------------------------------------------------

COMMANDS = [
    (page, command)
    for page in PAGES
    for block in blocks(page)
    if block.language == "console" and block.comment != "refused"
    for command in commands(block)
    if command.startswith(("suture ", "python benchmarks/", "python -m benchmarks"))
]


def inner(known: Parser, words: Sequence[str]) -> tuple[Parser, Sequence[str]]:
    """The parser of the innermost command that the words begin with, and what is left of them."""
    while words and known.commands:
        assert words[0] in known.commands, f"no command {words[0]}"
        known, words = known.commands[words[0]], words[1:]
    return known, words


def problem(command: str) -> str:
    """What is wrong with a command of a page; nothing if it parses, or ends in ``…`` and has flags that exist."""
    words = shlex.split(command, comments=True)
    if words[0] == "python" and words[1] != "-m":
        return "" if (ROOT / words[1]).is_file() else f"no file {words[1]}"
    try:
        if words[:3] == ["python", "-m", "benchmarks"]:
            benchmarks.parser().parse_args(words[3:])
            return ""
        if words[:3] == ["python", "-m", "benchmarks.gpu"]:
            return "" if words[3] in ("pack", "check", *gpu.STAGES) else f"no stage {words[3]}"
        if "…" not in words:
            parser().parse_args(words[1:])
            return ""
        known, rest = inner(parser(), [word for word in words[1:] if word != "…"])
        flags = {flag for action in known._actions for flag in action.option_strings}
        return ", ".join(f"no flag {w}" for w in rest if w.startswith("--") and w not in flags)
    except (SutureError, AssertionError) as error:
        return str(error)
    except SystemExit as done:  # --help
        return "" if done.code == 0 else str(done)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_a_shell_reads_the_commands_of_the_pages() -> None:
    for page in PAGES:
        said = "\n".join(c for block in blocks(page) if block.language == "console" for c in commands(block))
        done = subprocess.run(["bash", "-n"], input=said, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{page}: {done.stderr}"


def test_the_commands_of_the_pages_are_there() -> None:
    wrong = {(page, command): problem(command) for page, command in COMMANDS}
    assert {where: said for where, said in wrong.items() if said} == {}


def test_a_wrong_command_would_be_seen() -> None:
    for command in (
        "suture curv a b --data digits",
        "suture curve a b --data digits --speed 2",
        "suture curve … --speed 2",
        "suture curve a --data digits",
        "python benchmarks/nothing.py",
        "python -m benchmarks matrix --speed 3",
        "python -m benchmarks.gpu y",
        "suture plan …x",
    ):
        assert problem(command), command


# --- links ------------------------------------------------------------------------------------------------------------


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as sites make them."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    named = set(re.findall(r'<a id="([^"]+)">', text))
    return named | {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip()) for title in titles}


def broken(path: Path) -> list[str]:
    """The relative links and images of a page that lead nowhere."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, anchor = target.partition("#")
        if re.match(r"\w+:", target):
            continue
        there = (path.parent / file).resolve() if file else path
        if not there.exists() or (anchor and there.suffix == ".md" and anchor not in anchors(there)):
            wrong.append(target)
    return wrong


def test_links_and_images_are_there() -> None:
    wrong = {page: broken(path) for page, path in PAGES.items()}
    assert {page: links for page, links in wrong.items() if links} == {}


def test_a_broken_link_would_be_seen(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A `b`, and c\n")
    (tmp_path / "page.md").write_text("# Here\n[a](other.md#a-b-and-c) [b](#here) ![c](c.png) [d](other.md#d) [e](#e)")
    assert broken(tmp_path / "page.md") == ["c.png", "other.md#d", "#e"]


def test_every_picture_is_shown_somewhere() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in PAGES.values())
    assert [p.name for p in (ROOT / "docs" / "images").iterdir() if p.name not in text] == []


def empty_folds(text: str) -> list[str]:
    """The summaries of folds that hold nothing, or that Markdown left unread as text, of a page or its HTML."""
    folds = re.findall(r"<details[^>]*>(.*?)</details>", text, re.DOTALL)
    parts = [re.split(r"</summary>", fold, maxsplit=1) for fold in folds]
    shown = [re.sub(r"<(?!img|svg)[^>]*>", "", part[-1]).strip() if len(part) == 2 else "" for part in parts]
    return [re.sub(r"<[^>]*>", "", part[0]).strip() for part, held in zip(parts, shown, strict=True) if not held]


def test_no_fold_is_empty() -> None:
    assert {page: folds for page, path in PAGES.items() if (folds := empty_folds(path.read_text("utf-8")))} == {}


def test_an_empty_fold_would_be_seen() -> None:
    held = '<details markdown="1">\n<summary>The rows</summary>\n\n{}\n\n</details>'
    assert empty_folds(held.format("| a |") + held.format("<p> </p>") + "<details><p>x</p></details>") == [
        "The rows",
        "x",
    ]
    assert empty_folds(held.format('<img src="a.png">')) == []


# --- the site ---------------------------------------------------------------------------------------------------------


@pytest.mark.docs
def test_the_site_builds_without_a_warning_and_asks_nobody(tmp_path: Path) -> None:
    pytest.importorskip("zensical", reason="the extra `docs` is not installed")
    shutil.copytree(ROOT / "docs", tmp_path / "docs")  # with the papers' pages, to which it has a link
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    for package in ("src", "papers"):
        (tmp_path / package).symlink_to(ROOT / package)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    built = {page: page.read_text(encoding="utf-8") for page in (tmp_path / "build" / "site").rglob("*.html")}
    assert len(built) > 20
    assert (
        "Revisiting model stitching"
        in (tmp_path / "build" / "site" / "notebooks" / "stitching" / "index.html").read_text()
    )
    loaded = (
        r"<(?:script|img|iframe)[^>]* src=\"?(https?:|//)|<link[^>]* rel=\"?stylesheet\"?[^>]* href=\"?(https?:|//)"
    )
    assert [page.name for page, text in built.items() if re.search(loaded, text)] == []
    assert {str(page): folds for page, text in built.items() if (folds := empty_folds(text))} == {}
