"""Whether the tests notice faults: every mutant of ``mutants.toml`` is a fault, and a test must fail of it.

    python benchmarks/mutants.py                              # all of them, on this checkout
    python benchmarks/mutants.py --only fits-02 fits-05       # some
    python benchmarks/mutants.py --root DIR --log FILE        # of another checkout; to another log
    python benchmarks/mutants.py --check                      # that each can be applied, and nothing more

A mutant replaces ``before`` by ``after`` in ``file``, a path below the root, inside the function or class
``where``, which is empty for the whole file; ``before`` must be there exactly once. ``PACKAGES`` are copied to a
temporary folder, the mutants are applied to the copy one at a time, and their ``tests`` are run in the order given, up
to the first failure. One that no test fails of has *survived*; a run longer than ``--limit`` seconds has killed its
mutant. One with ``gone`` is of code that is no more, of which that says why: it is neither applied nor counted.

Each outcome is a line of JSON in the log, and a mutant with one there is skipped, so a run can be stopped and begun
again; another log judges all anew. That the tests pass without a mutant is taken for granted: see to it first.
"""

import argparse
import ast
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
PACKAGES: Final = ("src", "papers")
MARKS: Final = "not ray and not gpu and not browser and not docs and not kills"
SURVIVED, NOTHING_RUN = 0, (4, 5)  #: exit codes of pytest; all others say that something failed


@dataclass(frozen=True)
class Mutant:
    """One fault. ``origin`` is the commit or the draw that it comes from, ``why`` the consequence."""

    id: str
    origin: str
    file: str
    where: str
    before: str
    after: str
    tests: tuple[str, ...]
    why: str = ""
    gone: str = ""

    def applied_to(self, source: str) -> str:
        """The source with the fault. Raises ``ValueError`` where ``before`` is not there exactly once."""
        places = [
            start
            for first, last in _spans(source, self.where)
            for start in _occurrences(source, self.before, first, last)
        ]
        if len(places) != 1:
            within = f"{self.where or 'the whole'} of {self.file}"
            raise ValueError(f"{self.id}: {self.before!r} is {len(places)} times in {within}, and must be once")
        (place,) = places
        return source[:place] + self.after + source[place + len(self.before) :]


def _spans(source: str, where: str) -> list[tuple[int, int]]:
    """Where every definition of that qualified name begins and ends; a property and its setter are two of one name."""
    if not where:
        return [(0, len(source))]
    starts = [0]
    for line in source.split("\n"):
        starts.append(starts[-1] + len(line) + 1)

    def found(node: ast.AST, prefix: str) -> Iterator[tuple[int, int]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}{child.name}"
                if name == where:
                    assert child.end_lineno is not None
                    yield starts[child.lineno - 1], starts[child.end_lineno]
                yield from found(child, f"{name}.")
            else:
                yield from found(child, prefix)

    return list(found(ast.parse(source), ""))


def _occurrences(source: str, snippet: str, first: int, last: int) -> Iterator[int]:
    place = source.find(snippet, first, last)
    while place >= 0:
        yield place
        place = source.find(snippet, place + 1, last)


def mutants(path: Path = HERE / "mutants.toml") -> tuple[Mutant, ...]:
    """The list, in its order. Raises ``ValueError`` where two have one id."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    made = tuple(Mutant(**{**table, "tests": tuple(table["tests"])}) for table in tables)
    if twice := [name for name, count in Counter(mutant.id for mutant in made).items() if count > 1]:
        raise ValueError(f"several mutants are called {', '.join(twice)}")
    return made


def check(chosen: Sequence[Mutant], root: Path) -> None:
    """See that each can be applied and that its tests are there. Raises ``ValueError`` naming all that cannot."""
    wrong = []
    for mutant in chosen:
        try:
            changed = mutant.applied_to((root / mutant.file).read_text(encoding="utf-8"))
            compile(changed, mutant.file, "exec")
        except (OSError, ValueError, SyntaxError) as error:
            wrong.append(str(error) if isinstance(error, ValueError) else f"{mutant.id}: {error}")
        wrong += [f"{mutant.id}: there is no {test}" for test in mutant.tests if not (root / test).is_file()]
        if not mutant.tests:
            wrong.append(f"{mutant.id}: it has no tests")
    if wrong:
        raise ValueError("\n".join(wrong))


def judge(mutant: Mutant, copy: Path, root: Path, limit: float) -> dict[str, object]:
    """Apply a mutant to a copy of the packages, run its tests, and put the source back; return its entry of the log."""
    path = copy / mutant.file
    plain = path.read_text(encoding="utf-8")
    try:
        path.write_text(mutant.applied_to(plain), encoding="utf-8")
        _forget(path)
        began, spent = time.monotonic(), _spent()
        code, said = _pytest(mutant.tests, copy, root, limit)
    finally:
        path.write_text(plain, encoding="utf-8")
        _forget(path)
    if code in NOTHING_RUN:
        raise RuntimeError(f"{mutant.id}: pytest ran nothing:\n{said}")
    return {
        "id": mutant.id,
        "outcome": "survived" if code == SURVIVED else "killed",
        "by": "the time limit" if code is None else _first_failure(said),
        "seconds": round(time.monotonic() - began, 1),
        "processor": round(_spent() - spent, 1),
    }


def _pytest(tests: Sequence[str], copy: Path, root: Path, limit: float) -> tuple[int | None, str]:
    """Run pytest; return its exit code (``None`` after the time limit) and its output. All its processes are ended."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", MARKS, *tests]
    settings = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(copy / one) for one in PACKAGES),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
    with subprocess.Popen(
        command,
        cwd=root,
        env=settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=limit)
            return process.returncode, said
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, process.communicate()[0]


def _first_failure(said: str) -> str:
    lines = (line for line in said.splitlines() if line.startswith(("FAILED ", "ERROR ")))
    return next(lines, "").split(" - ")[0].partition(" ")[2]


def _spent() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _forget(path: Path) -> None:
    """Remove the compiled file, which a change of one size within one second would not renew."""
    Path(cache_from_source(str(path))).unlink(missing_ok=True)


def logged(path: Path) -> dict[str, dict[str, object]]:
    """Return the results in a log, by mutant."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {entry["id"]: entry for entry in map(json.loads, lines)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the mutants that the command line names; 1 where one survived."""
    parser = argparse.ArgumentParser(description="Whether the tests notice the faults of mutants.toml.")
    parser.add_argument("--only", nargs="+", metavar="ID", help="these mutants alone, in this order")
    parser.add_argument("--root", type=Path, default=HERE.parent, metavar="DIR", help="the checkout (this one)")
    parser.add_argument("--log", type=Path, default=Path("mutants.jsonl"), metavar="FILE", help="mutants.jsonl")
    parser.add_argument("--limit", type=float, default=600, metavar="SECONDS", help="for the tests of a mutant (600)")
    parser.add_argument("--check", action="store_true", help="only see that all can be applied")
    asked = parser.parse_args(arguments)
    root, every = asked.root.resolve(), [mutant for mutant in mutants() if not mutant.gone]
    if unknown := set(asked.only or ()) - {mutant.id for mutant in every}:
        parser.error(f"no mutant is called {', '.join(sorted(unknown))}")
    chosen = sorted(
        (mutant for mutant in every if asked.only is None or mutant.id in asked.only),
        key=lambda mutant: asked.only.index(mutant.id) if asked.only else 0,
    )
    try:
        check(chosen, root)
    except ValueError as error:
        sys.exit(str(error))
    if asked.check:
        print(f"{len(chosen)} mutants can be applied")
        return 0
    known = logged(asked.log)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, asked.log.open("a", encoding="utf-8") as log:
        copy = Path(folder)
        shutil.copytree(root / "src", copy / "src")
        shutil.copytree(root / "papers" / "suture_papers", copy / "papers" / "suture_papers")
        for mutant in chosen:
            if mutant.id not in known:
                known[mutant.id] = entry = judge(mutant, copy, root, asked.limit)
                print(json.dumps(entry), file=log, flush=True)
                print(f"{entry['outcome']:9} {mutant.id} ({entry['seconds']} s) {entry['by']}", flush=True)
    outcomes = Counter(known[mutant.id]["outcome"] for mutant in chosen)
    survivors = [mutant.id for mutant in chosen if known[mutant.id]["outcome"] == "survived"]
    print(f"{len(chosen)} mutants: {outcomes['killed']} killed, {outcomes['survived']} survived")
    print(*survivors, sep="\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
