"""The files of the user's code, and which modules are a library's.

A function of the user's counts by the text of its file and of every file of the user's that this imports, however deep
and wherever in it. A text is compared as it is, comments too, since that is what every process can compare. Imports
whose names are computed, and files that code reads as data, are not seen. Code without a file, as that of a notebook,
counts by the text that ``linecache`` has of it: a cell as a whole.

Python's library and those that Suture is made of count by name alone: the record of a result says which torch it was,
and an upgrade is not a reason to measure everything again. Other installed packages count by their versions, too. A
package that is installed to be edited in place is the user's.
"""

import ast
import functools
import hashlib
import importlib.metadata
import linecache
import pkgutil
import sys
import sysconfig
import types
from collections.abc import Mapping
from contextlib import suppress
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import Any, NamedTuple

from suture.common.errors import CodeError

Source = tuple[tuple[str, ...], ...]
"""The hash of a text; then the name of each module that it imports with its hash, or its package's version."""

OWN = {"suture", "suture_papers"}  #: the packages of this repository, between which code may move
_BY_NAME = {*OWN, "torch", "torchvision", "timm", "transformers", "numpy", "scipy", "sklearn", "pandas"}
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_PYTHON = [Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib")]
_MADE = ("namedtuple_", "pybind11_", "_cython_")  # begin the names of modules that are nowhere
_KEPT = "__suture_sources__"  # stands among the globals of a module, so that it goes when the module goes


class _Text(NamedTuple):
    sha: str
    imports: tuple[str, ...]
    tree: ast.Module | None


class _Sources(dict[str, Any]):
    """Maps a file to its ``_Text`` beside the module's spec, or to the ``Source`` of another process. Never sent on."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return _Sources, ()


def versions(name: object) -> tuple[str, ...] | None:
    """Return the versions that the library of a module counts by, often none; ``None`` if it is the user's."""
    root = name.partition(".")[0] if isinstance(name, str) else ""
    if root in _BY_NAME or root in sys.builtin_module_names or root.startswith(_MADE):
        return ()
    spec = _find(root) if root not in ("", "__main__", "__mp_main__") else None
    if spec is None or spec.has_location or spec.origin is None:
        places = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
        return next((_versions_at(root, place) for place in places if place), None)
    return ()  # frozen into the interpreter


@functools.cache
def _versions_at(root: str, place: str) -> tuple[str, ...] | None:
    path = Path(place).resolve()
    if not _INSTALLED.isdisjoint(path.parts):
        known = _distributions(tuple(sys.path)).get(root, ())
        return tuple(sorted(f"{one} {importlib.metadata.version(one)}" for one in {*known})) or None
    return () if any(path.is_relative_to(folder) for folder in _PYTHON) else None


@functools.cache
def _distributions(path: tuple[str, ...]) -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()  # which takes a second


def source_of(space: dict[str, Any], file: str) -> Source | None:
    """Return the hashes of a file of the user's and of all that it imports; ``None`` if there is no text.

    ``space`` are the globals of the code. The file of a module counts as it was when it was first asked for, until the
    module is imported again, because the code that is loaded stays.
    """
    if isinstance(sent := space.get(_KEPT, {}).get(file), tuple):
        return sent
    text = _read(space, file, space.get("__package__"))
    found: dict[str, tuple[str, ...]] = {}
    queue = [*text.imports] if text else []
    for name in queue:
        known, spec = versions(name), _find(name.removesuffix(".*"))
        if known:
            found[name.partition(".")[0]] = known
        if known is not None or spec is None or name in found:
            continue
        package, inside = name.rpartition(".")[0], spec.submodule_search_locations
        if name.endswith(".*"):  # it may import what __all__ names
            queue += [f"{package}.{one.name}" for one in pkgutil.iter_modules(inside)]
            continue
        module = sys.modules.get(name)
        own = _read(vars(module) if module else {}, spec.origin or "", package if inside is None else name)
        found[name] = (own.sha,) if own else ()
        queue += [*filter(None, [package]), *(own.imports if own else ())]
    return ((text.sha,), *((name, *hashes) for name, hashes in sorted(found.items()))) if text else None


def remember(space: dict[str, Any], file: str, source: Source) -> None:
    """Keep the source of code that came from another process, which may not have its files."""
    space.setdefault(_KEPT, _Sources())[file] = source


def check_loaded(function: types.FunctionType) -> None:
    """Raise ``CodeError`` if a function is not in its file, because that has been edited since it was loaded.

    Only Python's own loader is trusted to compile what the file says; pytest's, for one, rewrites it.
    """
    code, space = function.__code__, function.__globals__
    kept, plain = space.get(_KEPT, {}).get(code.co_filename), (SourceFileLoader, types.NoneType)
    known = isinstance(kept, list) and kept[1].tree is not None and type(space.get("__loader__")) in plain
    if known and code not in _codes(kept[1].tree):
        raise CodeError(
            f"{code.co_filename} was edited after {function.__qualname__} was loaded from it, so its text "
            "is not the code that runs; start Python again, or reload the module and make its objects again"
        )


@functools.lru_cache(100)
def _codes(tree: ast.Module) -> set[types.CodeType]:
    found = [compile(tree, "", "exec", dont_inherit=True)]
    for code in found:
        found += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
    return {*found}


def _read(space: dict[str, Any], file: str, package: str | None) -> _Text | None:
    spec, kept = space.get("__spec__"), space.get(_KEPT, {}).get(file)
    if isinstance(kept, list) and kept[0] is spec:
        return kept[1]  # type: ignore[no-any-return]
    try:
        text = _parse(Path(file).read_bytes(), package or "")
    except (OSError, ValueError):
        lines = "".join(linecache.getlines(file, space))  # of a cell, which may run again with another text
        return _parse(lines.encode(), package or "") if lines else None
    space.setdefault(_KEPT, _Sources())[file] = [spec, text]
    return text


@functools.lru_cache(1000)
def _parse(content: bytes, package: str) -> _Text:
    """Return a text with the names of all that runs before it or that it may import."""
    names, tree = [package], None
    with suppress(SyntaxError, ValueError):  # an extension module, or a cell with commands of the notebook's
        tree = ast.parse(content)
    for node in ast.walk(tree) if tree else ():
        match node:
            case ast.Import(aliases):
                names += [alias.name for alias in aliases]
            case ast.ImportFrom(module, aliases, level):
                above = package.split(".")[: package.count(".") + 2 - level] if level else []
                base = ".".join([*above, *([module] if module else [])])
                names += [base, *(f"{base}.{alias.name}" for alias in aliases)]
            case ast.Call(ast.Name("__import__") | ast.Attribute(_, "import_module"), [ast.Constant(str(name)), *_]):
                names.append(name)
    return _Text(hashlib.sha256(content).hexdigest(), tuple(sorted({*names} - {""})), tree)


def _find(name: str) -> ModuleSpec | None:
    """Return where a module lies, without importing it or its packages."""
    spec: ModuleSpec | None = getattr(sys.modules.get(name), "__spec__", None)
    parent = name.rpartition(".")[0]
    above = _find(parent) if parent and spec is None else None
    if spec is not None or (parent and (above is None or above.submodule_search_locations is None)):
        return spec
    places = above.submodule_search_locations if above else None
    with suppress(KeyError):  # a folder without __init__.py in one of which nothing is imported yet
        return next(filter(None, (finder.find_spec(name, places) for finder in sys.meta_path)), None)
    return None
