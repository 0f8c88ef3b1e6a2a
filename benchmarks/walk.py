"""How many files one walks through: the files that a trial enters, and those that are handed ``--at``.

    python benchmarks/walk.py

Counts the distinct files of the package (without ``common/``, without what only runs at import) (1) that are entered
while one trial of the default fit is measured on the processor, from an image to its score, and (2) that are entered
with the value of ``--at`` in an argument, from the command line to the first stitch that is built, and prints them. It
also counts, with ``common/``, how many files and functions ``suture.stitch`` and ``suture curve`` enter at one cut with
all defaults.
"""

import argparse
import inspect
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType

import suture

PACKAGE = Path(suture.__file__).parent
#: the files of ``common/``, also by their names from before there were folders
COMMON = "lazily errors checking processor seeds identities spelling writing sizes"
NEEDLE = "needle"
PATTERN = "need?e"  #: what ``--at`` is given; a cut of the model is called so only once the plan has resolved it
MODEL = """
from torch import nn

def small():
    model = nn.Sequential()
    model.add_module("first", nn.Conv2d(1, 8, 3, padding=1))
    model.add_module("needle", nn.ReLU())
    model.add_module("pool", nn.AdaptiveAvgPool2d(2))
    model.add_module("flat", nn.Flatten())
    model.add_module("head", nn.Linear(32, 10))
    return model
"""


class Arrived(BaseException):
    """The first stitch is being built."""


def is_common(path: str) -> bool:
    """Return whether a file of the package belongs to the rooms that everything uses."""
    return path.startswith("common/") or path in {f"{name}.py" for name in COMMON.split()} or path == "__init__.py"


def holds(value: object, wanted: str, depth: int = 3) -> bool:
    """Whether a value is the wanted text, or has it inside."""
    if isinstance(value, str):
        return value == wanted
    if depth == 0 or value is None or isinstance(value, int | float | bytes):
        return False
    if isinstance(value, list | tuple | set):
        return any(holds(inner, wanted, depth - 1) for inner in list(value)[:20])
    if isinstance(value, dict):
        return any(holds(inner, wanted, depth - 1) for inner in list(value.values())[:40])
    if type(value).__module__.startswith(("suture", "argparse")) and hasattr(value, "__dict__"):
        return any(holds(inner, wanted, depth - 1) for inner in list(vars(value).values())[:60])
    return False


def entered(work: "object", wanted: "object") -> list[str]:
    """Run some work; the files of the package whose functions it calls, those that ``wanted`` says yes to."""
    found: dict[str, None] = {}

    def note(frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(str(PACKAGE)) or frame.f_code.co_name == "<module>":
            return
        path = str(Path(name).relative_to(PACKAGE))
        if path not in found and not is_common(path) and wanted(frame):  # type: ignore[operator]
            found[path] = None

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()  # type: ignore[operator]
    except Arrived:
        pass
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return list(found)


def reach(work: "object") -> tuple[int, int]:
    """Run some work; count the files of the package that it enters, and the functions."""
    found: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED  # and not a module's or a class's body
        if event == "call" and is_function and code.co_filename.startswith(str(PACKAGE)):
            found.add((code.co_filename, code.co_qualname))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()  # type: ignore[operator]
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return len({name for name, _ in found}), len(found)


def a_stitch() -> tuple[int, int]:
    """Count the files and functions that ``suture.stitch`` enters, networks and data made before."""
    namespace: dict[str, object] = {}
    exec(MODEL, namespace)
    data = suture.load_data("digits")
    a, b = (suture.Network(namespace["small"](), example=data.example, name=name) for name in "AB")  # type: ignore[operator]
    return reach(lambda: suture.stitch(a, b, at=NEEDLE, data=data))


def a_curve(folder: Path) -> tuple[int, int]:
    """Count the files and functions that ``suture curve`` enters, from its command line to its figure."""
    from suture.cli.main import main

    (folder / "small.py").write_text(MODEL, encoding="utf-8")
    line = ["curve", f"{folder}/small.py:small", f"{folder}/small.py:small", "--data", "digits", "--at", NEEDLE]
    return reach(lambda: main([*line, "--out", str(folder / "curve"), "--workers", "1"]))


def a_trial() -> list[str]:
    """The files that measuring one trial enters, with activations of its own."""
    namespace: dict[str, object] = {}
    exec(MODEL, namespace)
    data = suture.load_data("digits")
    networks = [suture.Network(namespace["small"](), example=data.example, name=name) for name in "AB"]  # type: ignore[operator]
    (trial,) = suture.curve(*networks, data=data, at=[NEEDLE], controls=())
    return entered(lambda: suture.measure(trial), lambda frame: True)


def the_option(folder: Path) -> list[str]:
    """The files that are handed the value of ``--at``, until a stitch is built."""
    from suture import stitches

    try:
        from suture.cli.main import main
    except ImportError:
        from suture.cli import main

    def stop(*given: object, **named: object) -> None:
        raise Arrived

    (folder / "small.py").write_text(MODEL, encoding="utf-8")
    stitches.Conv.build = stop  # type: ignore[method-assign, assignment]
    line = ["curve", f"{folder}/small.py:small", f"{folder}/small.py:small", "--data", "digits", "--at", PATTERN]
    line += ["--controls", "none", "--out", str(folder / "out"), "--workers", "1"]
    planned = []

    def is_handed(frame: FrameType) -> bool:
        given = frame.f_locals.values()
        if any(holds(value, PATTERN) for value in given):
            planned.extend([True] * frame.f_code.co_filename.endswith("plans.py"))
            return True
        return bool(planned) and any(holds(value, NEEDLE) for value in given)

    return entered(lambda: main(line), is_handed)


def main() -> None:
    """Print both counts with the files."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for what, (files, functions) in (("suture.stitch", a_stitch()), ("suture curve", a_curve(Path(folder)))):
            print(f"{what} enters {files} files and {functions:,} functions")
        for what, names in (("one trial enters", a_trial()), ("--at is handed through", the_option(Path(folder)))):
            print(f"{what} {len(names)} files")
            print("".join(f"  {name}\n" for name in names), end="")


if __name__ == "__main__":
    main()
