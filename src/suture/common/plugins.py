"""Additions to Suture by installed packages, which name them under ``[project.entry-points."suture.GROUP"]``.

========  ============================================================================================================
names     names for the command line and for Python: a mapping from their kind to ``{name: "module:object"}``
commands  commands of ``suture``: a mapping from the group in which the help shows them to ``cli.options.Command``
models    a kind of model string, by its prefix: a ``zoo.sources.ModelKind``
shelves   a place where trained networks are kept, by its prefix: a ``zoo.sources.Shelf``
studies   results beside a run's own that a report shows: a ``reports.html.runs.Studies``
========  ============================================================================================================
"""

from functools import cache
from importlib.metadata import entry_points
from typing import Any

from suture.common.errors import SutureError

GROUPS = ("names", "commands", "models", "shelves", "studies")
#: The package of this repository with everything that the papers need, and the command that installs it.
PAPERS = "suture_papers, which is installed from Suture's repository: pip install ./papers"


@cache
def added(group: str) -> dict[str, Any]:
    """Return the additions of packages to a group, by name. Raises ``SutureError`` if one cannot be loaded."""
    found = {}
    for one in entry_points(group=f"suture.{group}"):
        try:
            found[one.name] = one.load()
        except Exception as error:  # importing somebody's module may raise anything
            package = one.dist.name if one.dist is not None else one.value
            raise SutureError(
                f"{package} adds '{one.name}' to Suture, and loading it raised {type(error).__name__}: {error}; "
                f"install a version of {package} that suits this Suture, or uninstall it"
            ) from error
    return found
