"""Run experiments in a new store, with the trials of an older one that this version would measure bit for bit alike.

    python -m benchmarks.carry DATA OLD NEW --only ID … [--check N] [--results FOLDER] [--figures FOLDER]

``OLD`` is a store of version 15 and stays as it is; ``NEW`` is one of version 16. Version 16 differs only in the rate
that ``Converged`` begins at: it tries lower ones, too, where the loss falls at the first and hardly farther at a higher
one. So of a trial by ``Converged`` both searches are made, some seconds each. If they find the same rates, the trial is
carried, with the steps that the further tries take; all others are measured. Trials by other fits are carried as they
are. ``--check`` measures so many of those that were carried again, the quickest first, and compares; of those that a
machine like this one measured, since bits are a machine's.
"""

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import torch
from safetensors.torch import load, save

from suture.cli.main import main as suture
from suture.common.seeds import digest
from suture.core.activations.cache import Activations
from suture.fits import Converged, converged
from suture.fits.averaged import BEGUN, COUNTS, FIRST, LADDER, RATE, TRIED, AveragedDescent, Make
from suture.fits.coordinates import ALIKE, WHITE
from suture.measurement.tables.records import Record, describe_machine
from suture.measurement.tables.records import record as record_of
from suture.measurement.trials.measure import measure
from suture.measurement.trials.trial import VERSION, Trial
from suture.runs.runners.run import Work
from suture.runs.runners.tasks import Measuring
from suture.runs.store.store import ASIDE, TRIALS, Store

OLD = 15
LEAST = 3  #: points of a curve that is a descent's
OFF = 5e-3  #: share by which the loss of a descent's first look may be off on another machine
SAME = ("scores", "representation_error", "steps", "start", "converged", "gap", "curve")


class Searched(BaseException):
    """The search for a rate is over, and no fit is wanted."""


def count_tries(trial: Trial, curve: list[Record], cache: Activations) -> tuple[int, int] | None:
    """Return how many steps more version 16 tries rates for, in the units that were chosen and in all.

    ``None`` if it finds other rates. The units are those whose first look has the loss that was seen.
    """
    found: list[tuple[float, int]] = []  #: of each units, how far that loss is off, and the steps

    def search(make: Make, tolerance: float) -> AveragedDescent:
        for ridge in (ALIKE, WHITE):
            before, now = make(ridge), make(ridge)
            before.rate = RATE
            before._find_rate(LADDER, turn=False)
            now._set_out(LADDER, turn=True)
            if before.rate != now.rate:
                found.clear()
                break
            now._double(tolerance)
            off = abs(now.curve[1].validation_loss / curve[1]["validation_loss"] - 1)
            found.append((off, now.curve[1].step - before.steps - FIRST + TRIED))
            if not now.coordinates.rotated:
                break
        raise Searched

    with patch.object(converged, "choose_units", search), suppress(Searched):
        measure(trial, cache)
    if not found:
        return None
    off, own = min(found)
    every = [more for _, more in found]
    return (own, sum(every)) if off < OFF or len(set(every)) == 1 else None


def carry_steps(trial: Trial, record: Record, curve: list[Record], state: bytes, cache: Activations) -> bytes | None:
    """Add to a record what version 16 tries rates for; return its state with it, ``None`` if not all else is alike."""
    if not isinstance(trial.fit, Converged):
        return None if "Converged" in str(trial.fit) else state
    if len(curve) < LEAST:
        return state
    found = count_tries(trial, curve, cache)
    if found is None:
        return None
    own, every = found
    added = [0, *[own] * BEGUN, *[every] * len(curve)][: len(curve)]
    for point, further in zip(curve, added, strict=True):
        point["step"] += further
    record["steps"] += every
    if not state:
        return state
    tensors = load(state)
    tensors["numbers"][1 + COUNTS.index("steps")] += every
    tensors["curve"][:, 0] += torch.tensor(added)
    return save(tensors)


def carry(old: Path, new: Store, trial: Trial, cache: Activations) -> bool:
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
    if record["status"] != "ok":
        return False
    kept = carry_steps(trial, record, curve or [], state.read_bytes() if state.exists() else b"", cache)
    if kept is None:
        return False
    del record["sealed"]
    record |= {"trial": trial.key, "measuring": VERSION, "curve": curve}
    if stitched is not None:
        del stitched["sealed"]
        stitched["record"]["trial"] = trial.key
        record["stitched"] = stitched
    new.keep(TRIALS, trial.key, record, tensors, kept)
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
    carried, cache = list[Trial](), Activations()
    take: Callable[[Work, object], bool] = Work._take_stored

    def take_carried(work: Work, task: object) -> bool:
        if isinstance(task, Measuring) and carry(given.old, new, task.trial, cache):
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
