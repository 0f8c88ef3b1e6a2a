"""The surface: every name, option, column and error that somebody may depend on, one a line.

    python -m benchmarks.surface            prints it
    python -m benchmarks.surface --write    writes surface.txt

A change of ``surface.txt`` shows what a change of the code adds to what must be kept; ``tests/test_surface.py`` holds
the two equal.
"""

import argparse
import inspect
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import suture
import suture_papers
from suture import extend
from suture.cli.main import list_groups
from suture.common import errors
from suture.common.plugins import GROUPS, added
from suture.measurement.tables.table import COLUMNS

PATH = Path(__file__).parents[1] / "surface.txt"


def lines() -> Iterator[str]:
    """Return every line, sorted within its kind."""
    for kind, found in (
        ("name", _names("suture", suture)),
        ("extend", (f"suture.extend.{name}" for name in extend.__all__)),
        ("papers", _names("suture_papers", suture_papers)),
        ("option", _options()),
        ("column", COLUMNS),
        ("error", (name for name, one in vars(errors).items() if inspect.isclass(one) and issubclass(one, Exception))),
        ("entry point", (f"suture.{group} {name}" for group in GROUPS for name in added(group))),
    ):
        yield from sorted({f"{kind} {one}" for one in found})


def _names(prefix: str, package: ModuleType) -> Iterator[str]:
    """Return the public names of a package with those of its public modules, each callable with its parameters."""
    for name in package.__all__:
        thing = getattr(package, name)
        if not isinstance(thing, ModuleType):
            yield f"{prefix}.{name}{_taken(thing)}"
            continue
        own = getattr(thing, "__all__", None) or [
            key for key, one in vars(thing).items() if _is_its_own(thing, key, one)
        ]
        yield from (f"{prefix}.{name}.{one}{_taken(getattr(thing, one))}" for one in own)


def _is_its_own(module: ModuleType, name: str, thing: Any) -> bool:
    return not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__


def _taken(thing: Any) -> str:
    """Return the names of a callable's parameters, as in ``(sender, receiver, *, at, data)``."""
    if is_dataclass(thing) and isinstance(thing, type):
        return f"({', '.join(field.name for field in fields(thing) if field.init)})"
    if not inspect.isfunction(thing):
        return ""
    names = []
    for parameter in inspect.signature(thing).parameters.values():
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        if parameter.kind is parameter.KEYWORD_ONLY and not any(name.startswith("*") for name in names):
            names.append("*")
        names.append(f"{star}{parameter.name}")
    return f"({', '.join(names)})"


def _options() -> Iterator[str]:
    for commands in list_groups().values():
        for outer in commands:
            for command in outer.commands or (outer,):
                yield f"suture {command.name}"
                yield from (f"suture {command.name} {option.names[0]}" for option in command.options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    text = "\n".join(lines()) + "\n"
    if parser.parse_args().write:
        PATH.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
