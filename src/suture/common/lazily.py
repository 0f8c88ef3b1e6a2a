"""Names that are imported at their first use (PEP 562).

Importing torch takes seconds, which the help of the command line, its refusals and its completion need not wait for.
"""

import ast
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any


def lazily(space: dict[str, Any]) -> Callable[[str], object]:
    """Return the ``__getattr__`` of a module whose imports only type checkers see.

    ``space`` are the module's globals. A name is imported from the place that its file says.
    """
    tree = ast.parse(Path(space["__file__"]).read_text(encoding="utf-8"))
    places = {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def find(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module {space['__name__']!r} has no attribute {name!r}")
        place, own = places[name]
        module = importlib.import_module(place)
        found = vars(module)[own] if own in vars(module) else importlib.import_module(f"{place}.{own}")
        space[name] = found
        return found

    return find
