"""The rooms of this repository: who may import whom, read from the syntax tree."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import suture
from suture import extend

ROOT = Path(__file__).parents[1]
INSTRUMENT, PAPERS = ROOT / "src" / "suture", ROOT / "papers" / "suture_papers"


def imports(folder: Path) -> Iterator[tuple[Path, str, str]]:
    """Every import within a folder: the file, the module, and the name in it, empty if the module itself is meant."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path} imports relatively, which says nothing of the room"
                yield from ((path, node.module or "", alias.name) for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from ((path, alias.name, "") for alias in node.names)


def public_places() -> dict[str, set[str]]:
    """The modules that a package may import from, each with the names that it may take."""
    modules = [found for name in suture.__all__ if (found := getattr(suture, name)).__class__.__name__ == "module"]
    places = {one.__name__: set(getattr(one, "__all__", [n for n in vars(one) if n[0] != "_"])) for one in modules}
    return places | {"suture": {*suture.__all__}, "suture.extend": {*extend.__all__}}


def root_of(module: str) -> str:
    return module.partition(".")[0]


def test_the_instrument_knows_of_neither_papers_nor_laboratory() -> None:
    others = {"suture_papers", "benchmarks", "tests"}
    assert [(str(path), module) for path, module, _ in imports(INSTRUMENT) if root_of(module) in others] == []


def test_papers_import_public_names_alone() -> None:
    """``suture.__all__``, its submodules that are public, and ``suture.extend``; the lazy imports are no name."""
    places = public_places()
    private = [
        f"{path.relative_to(ROOT)}: from {module} import {name}"
        for path, module, name in imports(PAPERS)
        if root_of(module) == "suture" and name not in places.get(module, ()) and name != "lazily"
    ]
    assert private == []


def test_papers_know_nothing_of_the_laboratory() -> None:
    assert [
        (str(path), module) for path, module, _ in imports(PAPERS) if root_of(module) in ("benchmarks", "tests")
    ] == []


def test_what_is_for_extending_is_used_and_exists() -> None:
    """``suture.extend`` is as long as the papers need, and no longer."""
    used = {name for _, module, name in imports(PAPERS) if module == "suture.extend"}
    assert sorted(used) == sorted(extend.__all__)
    for name in extend.__all__:
        assert getattr(extend, name) is not None


def test_a_name_that_moved_says_where_it_is() -> None:
    for name in ("recipes", "variants", "complexity"):
        with pytest.raises(ImportError, match=f"suture_papers.{name}"):
            getattr(suture, name)
        importlib.import_module(f"suture_papers.{name}")
