"""Whether a later fit would change verdicts: stitches that were kept, scored again and after a few warm steps.

    python -m benchmarks.rejudge STUDY DATA STORE [--steps N]

An experiment's deciding stitches lie in 16 bits in ``papers/results/stitches``, put there by ``benchmarks/ledger.py``
when its table is finished. Each is measured twice by today's code: as it was kept, which shows how far the measurement
and the rounding move its score, and after some steps of Adam on the task, of which the parameters with the least
validation loss count, which shows what the fit had left. Prints a line
for each stitch and the largest moves: what ``STANDING`` in ``suture_papers/base/run.py`` should then hold.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import torch
from safetensors import safe_open
from torch import nn

import suture
from benchmarks.ledger import RESULTS, STITCHES, list_networks, plan_trials, take_kept
from suture.core.activations.cache import Activations
from suture.core.stitches.base import Shape
from suture.fits import Adam, Fit, FitReport, Problem, TaskLoss
from suture_papers import scale_named
from suture_papers.base.claims import STITCHES as SEEDS
from suture_papers.base.scale import Scale
from suture_papers.cli.studies import loader_of

RATE, BATCH, LOOK = 1e-3, 256, 35  #: of Adam; steps between two looks at the validation loss


@dataclass(frozen=True)
class Kept(Fit):
    """Set the stitch to one that a ``file`` has under the key of its ``trial``."""

    file: str
    trial: str

    def reads(self, shape: Shape) -> float:
        """Return 0: it reads no activations."""
        return 0

    def fit(self, problem: Problem, stitch: nn.Module) -> FitReport:
        """Set parameters and buffers."""
        stitch.load_state_dict(read_stitch(Path(self.file), self.trial))
        return FitReport(start="kept")


def warm(kept: Kept, steps: int) -> Fit:
    """Return the fit that descends from a stitch that was kept; the kept one if no step finds a lower loss."""
    return TaskLoss(start=kept, optimiser=Adam(lr=RATE), steps=steps, batch=BATCH, check=LOOK)


def read_stitch(path: Path, trial: str) -> dict[str, torch.Tensor]:
    """Return the tensors of a stitch that was kept, in single precision."""
    with safe_open(path, "pt") as file:
        names = [name for name in file.keys() if name.startswith(f"{trial}/")]  # noqa: SIM118
        held = {name.partition("/")[2]: file.get_tensor(name) for name in names}
    return {name: own.float() if own.is_floating_point() else own for name, own in held.items()}


def list_kept(path: Path) -> set[str]:
    """Return the keys of the trials whose stitches a file has."""
    with safe_open(path, "pt") as file:
        return {name.partition("/")[0] for name in file.keys()}  # noqa: SIM118


def plan_again(study: str, scale: Scale, store: suture.Store, kept: set[str]) -> Iterator[suture.Trial]:
    """Yield the trials of an experiment whose stitches were kept, with their networks."""
    for trial in plan_trials(study, scale, store):
        yield from (one for seed in range(SEEDS) if (one := replace(trial, seed=seed)).key in kept)


def main() -> int:
    """Measure the stitches that were kept, as they are and warmed; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", metavar="STUDY", help="an experiment of the papers")
    parser.add_argument("data", type=Path, metavar="DATA", help="a folder with cifar10/ and mnist/")
    parser.add_argument("store", type=Path, metavar="STORE", help="a folder for the networks")
    parser.add_argument("--steps", type=int, default=140, metavar="N", help="warm steps of 256 samples")
    given = parser.parse_args()
    path = STITCHES / f"{given.study}.safetensors"
    if not path.is_file():
        print(f"no stitches of {given.study} are kept; there are {', '.join(p.stem for p in STITCHES.glob('*'))}")
        return 2
    torch.set_num_threads(1)
    scale, store = scale_named("small", loader_of(str(given.data))), suture.Store.make(given.store)
    for base in list_networks(given.study, scale):
        take_kept(base, store)
    table = pd.read_parquet(RESULTS / f"{given.study}.trials.parquet").drop_duplicates("trial").set_index("trial")
    activations, moves = Activations(), []
    for trial in plan_again(given.study, scale, store, list_kept(path)):
        score = table["score"][trial.key]
        found = [float(table["stitched"][trial.key])]
        own = Kept(str(path), trial.key)
        for fit in (own, warm(own, given.steps)):
            made = suture.measure(replace(trial, fit=fit), activations)
            found.append(made.scores[score].value)
        kept, warmed = 100 * (found[1] - found[0]), 100 * (found[2] - found[0])
        moves.append((abs(kept), abs(warmed)))
        print(f"{trial.where}, seed {trial.seed}: {100 * found[0]:.2f} %, as kept {kept:+.2f}, warmed {warmed:+.2f}")
    print(
        f"{len(moves)} stitches; as kept at most {max(a for a, _ in moves):.2f}, warmed {max(b for _, b in moves):.2f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
