"""Run experiments in a new store, with the trials of an older one that this version would measure bit for bit alike.

    python -m benchmarks.carry DATA OLD NEW --only ID … [--check N] [--results FOLDER] [--figures FOLDER]

``OLD`` is a store of version 14 and stays as it is; ``NEW`` is one of version 15. Version 15 differs in what is fitted
only where a seam is convex, where a fit begins again although its stitch has buffers, where outputs are copied, and in
fits that are spelled otherwise. So a trial is carried if its fit's curve has more than two points and it kept the first
start or a stitch without buffers; all others are measured. ``--check`` measures so many of those that were carried
again, the quickest first, and compares; of those that a machine like this one measured, since bits are a machine's.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import torch
from safetensors.torch import load

from suture.cli.main import main as suture
from suture.common.seeds import digest
from suture.data.tasks import OwnOutputs
from suture.measurement.tables.records import describe_machine
from suture.measurement.tables.records import record as record_of
from suture.measurement.trials.measure import measure
from suture.measurement.trials.trial import VERSION, Trial
from suture.runs.runners.run import Work
from suture.runs.runners.tasks import Measuring
from suture.runs.store.store import ASIDE, TRIALS, Store

OLD = 14
LEAST = 3  #: points of a curve that is a descent's
SAME = ("scores", "representation_error", "steps", "start", "converged", "gap", "curve")


def is_alike(trial: Trial, curve: list[object], start: str, tensors: bytes) -> bool:
    """Return whether this version measures a trial as version 14 did."""
    if isinstance(trial.task, OwnOutputs) or len(curve) < LEAST:
        return False
    buffers = any(name.endswith(("running_mean", "running_var", "base")) for name in load(tensors))
    return start not in ("random", "displaced") or not buffers


def carry(old: Path, new: Store, trial: Trial) -> bool:
    """Take a trial from the old store into the new one, if it is there and alike; return whether it is."""
    key = digest(OLD, trial.description)[:20]
    folder = old / TRIALS / key
    if not (folder / "done").exists():
        return False
    record, curve, stitched = (
        json.loads((folder / name).read_text()) if (folder / name).exists() else None
        for name in ("measurement.json", ASIDE["curve"], ASIDE["stitched"])
    )
    tensors, state = (folder / "stitch.safetensors").read_bytes(), folder / "state.safetensors"
    if record["status"] != "ok" or not is_alike(trial, curve, record["start"], tensors):
        return False
    del record["sealed"]
    record |= {"trial": trial.key, "measuring": VERSION, "curve": curve}
    if stitched is not None:
        del stitched["sealed"]
        stitched["record"]["trial"] = trial.key
        record["stitched"] = stitched
    new.keep(TRIALS, trial.key, record, tensors, state.read_bytes() if state.exists() else b"")
    return True


def is_of_here(trial: Trial, new: Store) -> bool:
    """Return whether a machine like this one measured a trial, from the start: one that goes on may be of two."""
    return new.record(TRIALS, trial.key)["machine"] == describe_machine() and "cap=" not in str(trial.fit)


def compare(trial: Trial, new: Store) -> bool:
    """Measure a trial again; say how it compares with what was carried, and return whether it is the same."""
    found = {name: value for name, value in record_of(measure(trial)).items() if name in SAME}
    kept = new.record(TRIALS, trial.key)
    kept["curve"] = json.loads((new.path / TRIALS / trial.key / ASIDE["curve"]).read_text())
    off = [name for name in SAME if json.loads(json.dumps(found[name])) != kept[name]]
    print(
        f"{trial.where}, {kept['seconds']:.0f} s: {'other ' + ', '.join(off) if off else 'the same bits'}", flush=True
    )
    return not off


def main() -> int:
    """Run a command; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--only", nargs="+", required=True, metavar="ID")
    parser.add_argument("--results", type=Path, default=Path("results/small"))
    parser.add_argument("--figures", type=Path, default=Path("docs/images/studies"))
    parser.add_argument("--check", type=int, default=0, metavar="N")
    given = parser.parse_args()
    torch.set_num_threads(1)
    new = Store.make(given.new)
    carried: list[Trial] = []
    take: Callable[[Work, object], bool] = Work._take_stored

    def take_carried(work: Work, task: object) -> bool:
        if isinstance(task, Measuring) and carry(given.old, new, task.trial):
            carried.append(task.trial)
        return take(work, task)

    with patch.object(Work, "_take_stored", take_carried):
        folders = ["--out", given.new, "--results", given.results, "--figures", given.figures, "--data", given.data]
        code = suture(["run", *given.only, *map(str, folders), "--workers", "1", "--until-converged"])
    print(f"{len(carried)} trials carried", flush=True)
    here = [trial for trial in carried if is_of_here(trial, new)]
    quick = sorted(here, key=lambda trial: float(new.record(TRIALS, trial.key)["seconds"]))
    same = [compare(trial, new) for trial in quick[: given.check]]
    return code or int(not all(same))


if __name__ == "__main__":
    sys.exit(main())
