"""What ``import suture`` promises: its names, their docstrings, its version, and that it is quiet."""

import inspect
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import suture

ROOT = Path(__file__).parents[1]


def public(thing: object) -> Iterator[tuple[str, object]]:
    """The public classes and functions of a module of ours, and the public members of a class of ours."""
    if isinstance(thing, ModuleType):
        names = getattr(thing, "__all__", [name for name in vars(thing) if not name.startswith("_")])
        for name in names:
            member = getattr(thing, name)
            if callable(member) and getattr(member, "__module__", "").startswith("suture"):
                yield from ((f"{name}{inner}", found) for inner, found in public(member))
    elif inspect.isclass(thing):
        yield "", thing
        for name, member in vars(thing).items():
            if not name.startswith("_") and (inspect.isroutine(member) or isinstance(member, property)):
                yield f".{name}", member
    else:
        yield "", thing


def test_the_names_are_sorted_and_all_that_the_package_gives() -> None:
    assert suture.__all__ == sorted(set(suture.__all__))
    given = {name for name in dir(suture) if not name.startswith("_")}
    assert set(suture.__all__) <= given
    unsaid = given - set(suture.__all__)  # folders, imported on the way
    assert all(isinstance(getattr(suture, name), ModuleType) for name in unsaid), unsaid


def test_a_star_gives_the_names() -> None:
    namespace: dict[str, object] = {}
    exec("from suture import *", namespace)
    assert set(namespace) - {"__builtins__"} == set(suture.__all__)


def test_every_public_name_says_what_it_is() -> None:
    for name in suture.__all__:
        first = (inspect.getdoc(getattr(suture, name)) or "").partition("\n\n")[0]
        assert first.endswith((".", "::", ":")), name
        assert not first.startswith(f"{name}("), name  # the docstring that dataclass makes if there is none


def test_every_public_member_says_what_it_is() -> None:
    for name in suture.__all__:
        for inner, thing in public(getattr(suture, name)):
            text = inspect.getdoc(thing)
            assert text, name + inner
            assert not text.startswith(f"{(name + inner).rpartition('.')[2]}("), name + inner


def test_the_version_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert suture.__version__ == project["version"]


ALONE = """
import sys, suture
print(*({"torch", "numpy", "pandas"} & sys.modules.keys()), set(suture.__all__) <= set(dir(suture)))
import suture.measurement.compare
print(suture.explain.__name__, callable(suture.compare), suture.controls.__name__, hasattr(suture, "nothing"))
"""


def test_importing_alone_imports_nothing_and_functions_are_not_hidden_by_their_modules() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", ALONE], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True\nexplain True suture.measurement.trials.controls False\n", "")


QUIET = """
import socket, sys
def refuse(*args, **options): raise SystemExit("a connection was tried")
socket.socket.connect = socket.socket.connect_ex = socket.create_connection = socket.getaddrinfo = refuse
from suture import *
print(*(name for name in ("datasets", "sklearn", "matplotlib", "ray", "transformers") if name in sys.modules))
"""


def test_importing_is_quiet_downloads_nothing_and_leaves_heavy_libraries_for_later() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", QUIET], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")
