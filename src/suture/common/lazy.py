"""A package whose names are imported when they are first asked for.

Importing ``suture`` alone takes no time, so that the help of the command line, its refusals and its completion need not
wait for torch. This is PEP 562 with the list of SPEC 1 (https://scientific-python.org/specs/spec-0001): the package
writes its imports down once, where type checkers read them (``if TYPE_CHECKING``), and so does this module.

Python makes each imported submodule an attribute of its package, which would hide a public function of the same name;
here the public name stays.
"""

import ast
import sys
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


class LazyPackage(ModuleType):
    """The class of such a package; ``_places`` says which module has each of its names."""

    _places: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        """Import what is asked for the first time. Raises ``AttributeError`` for a name that is not public."""
        place = self._places.get(name)
        if place is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        found = None if place == self.__name__ else getattr(import_module(place), name, None)
        if found is None:  # a submodule
            found = import_module(f"{place}.{name}")
        self.__dict__[name] = found
        return found

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute, but let no module take the place of a public function of its name."""
        if not (isinstance(value, ModuleType) and self._places.get(name, self.__name__) != self.__name__):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        """List the public names too, imported or not."""
        return sorted({*super().__dir__(), *self._places})


def make_lazy(package: str) -> None:
    """Have a package import the names that its source imports under ``if TYPE_CHECKING`` when they are asked for."""
    module = sys.modules[package]
    source = module.__spec__.loader.get_source(package)  # type: ignore[union-attr]
    module.__dict__["_places"] = _imported_for_types(source)
    module.__class__ = LazyPackage


def _imported_for_types(source: str) -> Mapping[str, str]:
    return {
        alias.asname or alias.name: str(node.module)
        for block in ast.parse(source).body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
