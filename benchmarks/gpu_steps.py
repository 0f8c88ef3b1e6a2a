"""Stage f of ``benchmarks.gpu``: steps of the default fit that a GPU replays, beside the same steps one by one.

At seams of the kit's matrix, ``STEPS`` steps are taken from the closed form in plain and in whitened units, once as
``fits.steps`` records and replays them and once with recording switched off. ``off`` is the largest difference of the
averaged parameters, relative to the largest parameter: 0 if the bits are the same. Steps a second are then counted
for one, two, four and eight processes that replay at once, each with a stitch of its own.
"""

import time
from pathlib import Path
from typing import Any

import torch
from torch import multiprocessing

from benchmarks.gpu_stages import MakeStage, Record, about, do, plan_matrix
from suture import Trial
from suture.core.activations.cache import Activations
from suture.fits import LeastSquares
from suture.fits.averaged import Ground
from suture.fits.coordinates import WHITE
from suture.fits.steps import Batches, StaticSteps
from suture.fits.suffix import choose_suffix
from suture.measurement.trials.measure import build_stitch, make_problem

STEPS, BATCH, RATE = 70, 256, 0.1
TINY = 7  #: steps of a trial of the kit
WARMED = 10  #: steps before the clock begins
SEAMS = 4
TOGETHER = (1, 2, 4, 8)  #: processes
TOLERANCE = 1e-4  #: of ``off``: replayed sums may be taken in another order


def pose(trial: Trial, cache: Activations) -> Ground:
    """Return the ground of the arms of a trial's fit, at the closed form."""
    stitch = build_stitch(trial)
    problem = make_problem(trial, cache, stitch)
    LeastSquares().fit(problem, stitch)
    stitch.eval()
    device = next(stitch.parameters()).device
    with torch.no_grad():
        probe = stitch(problem.fit.activations[:BATCH].to(device, copy=True))
    return Ground(problem, stitch, choose_suffix(problem.suffix, problem.fused, probe).run, BATCH)


def make_steps(ground: Ground, ridge: float | None, recorded: bool) -> StaticSteps:
    """Return steps from the closed form that are recorded, if the device can, or are not."""
    batches = Batches(ground.problem, BATCH, ground.device)
    made = StaticSteps(ground.problem, ground.place(ridge), ground.suffix, batches, RATE)
    if not recorded:
        made.note = "recording is switched off"
    return made


def time_steps(steps: StaticSteps, count: int) -> float:
    """Return how many steps are taken in a second."""
    steps.take(WARMED)
    _wait(steps.device)
    begun = time.perf_counter()
    steps.take(count)
    _wait(steps.device)
    return count / (time.perf_counter() - begun)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def compare(ground: Ground, ridge: float | None, count: int) -> Record:
    """Take the same steps replayed and one by one; return how far they are apart, and how fast each is."""
    made = {name: make_steps(ground, ridge, name == "replayed") for name in ("replayed", "one by one")}
    states = []
    for steps in made.values():
        steps.take(count)
        states.append(steps.mean(count)[0])
    replayed, eager = states
    off = max(float((replayed[name] - eager[name]).abs().max() / eager[name].abs().max()) for name in eager)
    record: Record = {"off": off, "agrees": off <= TOLERANCE, "note": made["replayed"].note}
    return record | {f"steps a second, {name}": round(time_steps(steps, count), 1) for name, steps in made.items()}


def _spin(folder: Path, device: str, tiny: bool, barrier: Any, told: Any) -> None:
    """Take steps at one seam when all processes are ready, and tell how many a second."""
    (trial, *_), _ = plan_matrix(folder, device, tiny)
    steps = make_steps(pose(trial, Activations()), None, recorded=True)
    steps.take(WARMED)
    _wait(steps.device)
    barrier.wait()
    told.put(time_steps(steps, TINY if tiny else STEPS))


def spin(folder: Path, device: str, tiny: bool, processes: int) -> Record:
    """Return the steps a second of so many processes that have the device together."""
    context = multiprocessing.get_context("spawn")
    barrier, told = context.Barrier(processes), context.Queue()
    running = [
        context.Process(target=_spin, args=(folder, device, tiny, barrier, told), daemon=True) for _ in range(processes)
    ]
    for each in running:
        each.start()
    rates = [told.get(timeout=180) for _ in running]
    for each in running:
        each.join()
    return {"steps a second": round(sum(rates), 1), "of each": [round(rate, 1) for rate in rates]}


def replay(folder: Path, make: MakeStage, device: str, tiny: bool) -> None:
    """Stage f: replayed steps beside eager ones, alone and in several processes; at most four minutes."""
    grid, cells = plan_matrix(folder, device, tiny)
    stage, cache, steps = make(about(grid)), Activations(), TINY if tiny else STEPS
    for trial in cells[: 1 if tiny else SEAMS]:
        ground = pose(trial, cache)
        for ridge in (None, WHITE):
            units = "plain" if ridge is None else "whitened"
            do(stage, f"{trial.where} | {units}", lambda ground=ground, ridge=ridge: compare(ground, ridge, steps))  # type: ignore[misc]
    together = TOGETHER[:1] if tiny else TOGETHER
    for count in together:
        do(stage, f"{count} at once", lambda count=count: spin(folder, device, tiny, count))  # type: ignore[misc]
    done = {key: record for key, record in stage.records.items() if "error" not in record}
    compared = [record for record in done.values() if "off" in record]
    summary = {
        "agree": sum(record["agrees"] for record in compared),
        "compared": len(compared),
        "same bits": sum(record["off"] == 0 for record in compared),
        "times as fast": [
            round(record["steps a second, replayed"] / record["steps a second, one by one"], 2) for record in compared
        ],
        "steps a second by processes": {key: done[key]["steps a second"] for key in done if key.endswith("at once")},
    }
    stage.end(summary, len(done) == 2 * len(cells[: 1 if tiny else SEAMS]) + len(together))
