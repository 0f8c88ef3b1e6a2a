"""The benchmark of a matrix: the plain loop, which cells in which order, what is kept, and what is said of it."""

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean, median

import pytest
import torch
from benchmarks.__main__ import main
from benchmarks.machine import Peaks, measure_peaks, spending
from benchmarks.matrix import (
    LEAST_SQUARES,
    OURS,
    PLAIN,
    File,
    Record,
    controls_of,
    jobs_of,
    least_squares_then_adam,
    measured,
    methods_for,
    spread,
    summarise,
)
from benchmarks.operations import fitted_flops, per_image, plain_flops, shared_flops
from benchmarks.plain_loop import Plain, measure_plain, plain_stitch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from benchmarks import matrix
from suture.common.errors import DataError, FitError
from suture.core.stitched import Seam
from suture.fits import Converged, LeastSquares, Quick, Random, TaskLoss
from suture.fits.optimisers import Adam
from suture.measurement.trials import controls, plans
from suture.measurement.trials.measure import measure
from suture.measurement.trials.trial import Trial
from trained import convnets, few_digits

CUTS = ("stage1", "stage3", "flatten")
QUICK = TaskLoss(steps=2, check=2)
METHODS: dict[str, matrix.Method] = {
    PLAIN: Plain(),
    LEAST_SQUARES: TaskLoss(start=LeastSquares(), steps=2, check=2),
    OURS: QUICK,
}


def a_grid() -> list[Trial]:
    a, b = convnets()
    data = few_digits().limited(fit=60, score=50)
    return list(plans.matrix(a, b, data=data, cuts=CUTS, controls=()))


def a_trial(sender_cut: str = "stage3", receiver_cut: str = "stage3") -> Trial:
    a, b = convnets()
    data = few_digits()
    return Trial(Seam(a, b, sender_cut, receiver_cut), data.fit, data.validation, data.score)


# The plain loop


def kinds(stitch: nn.Module) -> list[str]:
    return [type(module).__name__ for module in stitch.modules() if not list(module.children())]


def test_the_stitch_is_what_one_would_write() -> None:
    assert kinds(plain_stitch((5, 4, 4), (3, 4, 4))) == ["BatchNorm2d", "Conv2d", "BatchNorm2d"]
    larger = plain_stitch((5, 4, 4), (3, 8, 8))
    assert kinds(larger) == ["Upsample", "BatchNorm2d", "Conv2d", "BatchNorm2d"]
    smaller = plain_stitch((5, 8, 8), (3, 2, 4))
    conv = next(module for module in smaller.modules() if isinstance(module, nn.Conv2d))
    assert (conv.kernel_size, conv.stride) == ((4, 2), (4, 2))
    assert kinds(plain_stitch((5,), (3,))) == ["Linear"]


@pytest.mark.parametrize(
    ("sender", "receiver"),
    [((5, 4, 4), (3, 8, 8)), ((5, 8, 8), (3, 2, 4)), ((5, 7, 7), (3, 4, 4)), ((5,), (3,)), ((4, 5), (4, 3))],
)
def test_the_stitch_joins_the_shapes(sender: tuple[int, ...], receiver: tuple[int, ...]) -> None:
    assert plain_stitch(sender, receiver)(torch.zeros(2, *sender)).shape == (2, *receiver)


def written_by_hand(trial: Trial) -> float:
    """The loop of the brief, written out once more for maps of one size."""
    images, labels = trial.fit_data.images, trial.fit_data.labels
    prefix, suffix = trial.sender.upto(trial.sender_cut), trial.receiver.after(trial.receiver_cut)
    torch.manual_seed(0)
    (given, wanted) = (shape[0] for shape in trial.seam.shapes)
    stitch = nn.Sequential(nn.BatchNorm2d(given), nn.Conv2d(given, wanted, 1), nn.BatchNorm2d(wanted))
    optimiser = torch.optim.Adam(stitch.parameters(), lr=1e-3)
    batches = len(images) // 128
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 5 * batches)
    for _ in range(5):
        for chosen in torch.randperm(len(images))[: batches * 128].split(128):
            with torch.no_grad():
                sent = prefix(images[chosen])
            loss = nn.functional.cross_entropy(suffix(stitch(sent)), labels[chosen])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    stitch.eval()
    with torch.no_grad():
        said = suffix(stitch(prefix(trial.score_data.images))).argmax(1)
    return float((said == trial.score_data.labels).sum()) / len(said)


def test_the_loop_is_the_one_written_by_hand() -> None:
    trial = a_trial("stage1", "stage1")
    result = measure_plain(trial)
    assert result.accuracy == written_by_hand(trial)
    assert result.steps == 5 * (300 // 128)


def test_it_learns_an_easy_problem() -> None:
    trial = controls.itself(a_trial())
    alone = float((trial.receiver(trial.score_data.images).argmax(1) == trial.score_data.labels).float().mean())
    assert measure_plain(trial, Plain(epochs=60, lr=1e-2)).accuracy > alone - 0.05
    assert measure_plain(trial, Plain(epochs=1, lr=1e-6)).accuracy < alone - 0.3


def test_it_sees_the_labels_of_broken_pairs() -> None:
    trial = a_trial()
    long = Plain(epochs=60, lr=1e-2)
    assert measure_plain(trial, long).accuracy > 0.7
    assert measure_plain(controls.shuffled_pairs(trial), long).accuracy < 0.4


def test_it_takes_noise_for_a_sender() -> None:
    assert 0 <= measure_plain(controls.clustered_noise(a_trial())).accuracy <= 1


def test_it_leaves_everything_else_as_it_was() -> None:
    trial = a_trial()
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    before = [network.state_digest() for network in trial.seam.networks]
    first = measure_plain(trial)
    assert torch.equal(torch.rand(1), expected)
    assert measure_plain(trial) == first
    assert [network.state_digest() for network in trial.seam.networks] == before


def test_fewer_images_than_a_batch_are_one_batch() -> None:
    assert Plain().steps(100) == 5
    assert Plain().steps(300) == 10


def test_a_loss_that_is_not_finite_is_said() -> None:
    with pytest.raises(FitError, match=r"C → D at stage3\.pool is not finite"):
        measure_plain(a_trial(), Plain(lr=float("inf")))


# Operations


def test_operations_by_hand() -> None:
    trial = a_trial("flatten", "flatten")
    (wide,), (own,) = trial.seam.shapes
    cost = per_image(trial, nn.Linear(wide, own))
    stitch, head = 2 * wide * own, 2 * own * 10
    assert cost.forward == stitch + head
    assert cost.step == 2 * stitch + 2 * head  # of the stitch the weights' gradient, of the head the input's
    assert cost.prefix == trial.sender.cuts.find("flatten").flops
    images = 300 + len(trial.validation_data)
    expected = 5 * (images // 128 * 128) * (cost.prefix + cost.step) + 260 * (cost.prefix + cost.forward)
    assert plain_flops(trial, Plain()) == expected


def test_operations_of_a_fit() -> None:
    trial = replace(a_trial("flatten", "flatten"), fit=TaskLoss(steps=4, check=2, batch=32))
    measured = measure(trial)
    cost = per_image(trial, trial.family.build(*trial.seam.shapes))
    assert cost.step > cost.forward
    evaluated = len(measured.curve) * len(trial.validation_data) + 260
    assert fitted_flops(measured) == measured.steps * 32 * cost.step + evaluated * cost.forward
    assert not any(parameter.requires_grad for parameter in measured.stitch.parameters())
    closed = measure(replace(trial, fit=LeastSquares()))
    assert fitted_flops(closed) == 260 * cost.forward


def test_shared_operations_are_those_of_the_last_cuts() -> None:
    trial = a_trial("stage1", "stage3")
    a, b = trial.seam.networks
    fitted = len(trial.fit_data) + len(trial.validation_data)
    whole = [network.cuts.find("flatten").flops + 2 * 16 * 10 for network in (a, b)]
    expected = fitted * (a.cuts.find("stage1").flops + b.cuts.find("stage3").flops) + 260 * sum(whole)
    assert shared_flops(trial.needs) == expected


# Which cells, in which order


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 90))
def test_cells_are_distinct_and_fewer_are_the_first_of_more(rows: int, columns: int, count: int) -> None:
    cells = spread(rows, columns, count)
    assert len(set(cells)) == len(cells) == min(count, rows * columns)
    assert all(0 <= row < rows and 0 <= column < columns for row, column in cells)
    if count < rows * columns:
        assert spread(rows, columns, max(1, count - 1)) == cells[: max(1, count - 1)]


def test_cells_are_spread_evenly() -> None:
    cells = spread(8, 8, 16)
    quarters = [(row // 4, column // 4) for row, column in cells]
    assert all(3 <= quarters.count((i, j)) <= 5 for i in (0, 1) for j in (0, 1))
    assert len({row for row, _ in spread(9, 9, 6)}) == len({column for _, column in spread(9, 9, 6)}) == 6


def test_methods_take_turns() -> None:
    grid, known = a_grid(), METHODS | {"quick": QUICK}
    jobs = jobs_of(grid, known, sample=2, repeats=2, controls=())
    cells = list(dict.fromkeys((job.trial.sender_cut, job.trial.receiver_cut) for job in jobs))
    seams = [(job.repeat, (job.trial.sender_cut, job.trial.receiver_cut)) for job in jobs]
    assert len(cells) == 2
    assert seams == [(r, cell) for r in (0, 1) for cell in cells for _ in known]
    for first in range(0, len(jobs), len(known)):
        assert {job.name for job in jobs[first : first + len(known)]} == set(known)
    assert [jobs[i].name for i in (0, 4, 8, 12)] == [PLAIN, LEAST_SQUARES, LEAST_SQUARES, OURS]
    assert [job.trial.fit for job in jobs if job.name == "quick"] == [QUICK] * 4


def test_the_methods() -> None:
    known = methods_for(9000, ["quick,steps=5"])
    assert list(known) == [PLAIN, LEAST_SQUARES, OURS, "quick,steps=5"]
    assert (known[PLAIN], known[OURS], known["quick,steps=5"]) == (Plain(), Converged(), Quick(steps=5))
    assert (least_squares_then_adam(9000).steps, least_squares_then_adam(9000).batch) == (350, 128)
    assert (least_squares_then_adam(50).steps, least_squares_then_adam(50).batch) == (5, 50)


# What is measured and kept

PEAKS = Peaks({"float32": 50.0, "bfloat16": 100.0}, {"4×8×8": {"float32": 20.0, "bfloat16": 40.0}})
SUBJECT = {"networks": ["C", "D"], "data": "digits"}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is known."""
    monkeypatch.setattr(matrix, "measure_peaks", lambda networks: PEAKS)


@pytest.mark.usefixtures("quick")
@pytest.mark.slow
def test_what_is_said_is_what_the_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One benchmark, whose numbers are those of the library and of the loop, interrupted and continued."""
    grid, file = a_grid(), tmp_path / "b.jsonl"
    jobs = jobs_of(grid, METHODS, sample=2, repeats=2, controls=())
    shown: list[str] = []

    def interrupted(job: matrix.Job, cache: object) -> Record:
        if len(shown) == 3:
            raise KeyboardInterrupt
        shown.append(job.name)
        return once(job, cache)  # type: ignore[arg-type]

    once = matrix.measured_once
    monkeypatch.setattr(matrix, "measured_once", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measured(grid, METHODS, jobs, File(file, SUBJECT))
    with open(file, "a", encoding="utf-8") as half:
        half.write('{"record": {"cpu"\n')
    before = file.read_text()
    monkeypatch.setattr(matrix, "measured_once", lambda job, cache: shown.append(job.name) or once(job, cache))
    measured(grid, METHODS, jobs, File(file, SUBJECT))
    assert file.read_text().startswith(before)
    assert len(shown) == len(jobs) == 12
    kept = File(file, SUBJECT)
    monkeypatch.setattr(matrix, "fill", lambda *given: pytest.fail("something was measured again"))
    measured(grid, METHODS, jobs, kept)
    records = [kept.records[job.key] for job in jobs]
    for job, record in zip(jobs[:6], records, strict=False):
        plain = job.name == PLAIN
        expected = measure_plain(job.trial).accuracy if plain else measure(job.trial).scores["accuracy"].value
        assert record.accuracy == expected, job.name
    shared = kept.content["shared"]
    assert shared["cells"] == 9
    seams = {record.seam for record in records}

    def of(method: str, seam: tuple[str, str], name: str) -> list[float]:
        return [getattr(one, name) for one in records if (one.method, one.seam) == (method, seam)]

    plain_matrix = 9 * fmean(median(of(PLAIN, seam, "cpu")) for seam in seams)
    for method in summarise(list(METHODS), records, shared):
        cpu = [median(of(method.name, seam, "cpu")) for seam in seams]
        accuracy = {seam: of(method.name, seam, "accuracy") for seam in seams}
        points = {seam: 100 * (accuracy[seam][0] - of(PLAIN, seam, "accuracy")[0]) for seam in seams}
        own = 0 if method.name == PLAIN else shared["cpu"]
        flops = fmean(of(method.name, seam, "flops")[0] for seam in seams)
        shared_too = 0 if method.name == PLAIN else shared["flops"]
        assert all(len(set(values)) == 1 for values in accuracy.values())
        assert method.cell_cpu == pytest.approx(median(cpu))
        assert method.shared_cpu == own
        assert method.matrix_cpu == pytest.approx(own + 9 * fmean(cpu))
        assert method.times_cheaper == pytest.approx(plain_matrix / method.matrix_cpu)
        assert method.cell_wall == pytest.approx(median(median(of(method.name, seam, "wall")) for seam in seams))
        assert method.accuracy == pytest.approx(fmean(values[0] for values in accuracy.values()))
        assert method.good == fmean(value >= -0.3 for value in points.values())
        assert method.worst_points == pytest.approx(min(points.values()))
        assert points[method.worst_seam] == pytest.approx(method.worst_points)
        assert method.peak == max(one.peak for one in records if one.method == method.name)
        assert method.rate == pytest.approx((shared_too + 9 * flops) / method.matrix_cpu / 1e9)
    with pytest.raises(DataError, match="another data"):
        File(file, SUBJECT | {"data": "mnist"})


@pytest.mark.usefixtures("quick")
@pytest.mark.slow
def test_shared_work_is_of_the_whole_grid_and_no_cell_does_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = matrix.Activations._compute
    passes: list[str] = []
    spied = lambda self, need, *where: passes.append(need.key) or chunks(self, need, *where)  # noqa: E731
    monkeypatch.setattr(matrix.Activations, "_compute", spied)
    grid, methods = a_grid(), {PLAIN: Plain(), OURS: QUICK}
    measured(grid, methods, jobs_of(grid, methods, 1, 1, ()), File(tmp_path / "b", SUBJECT))
    needs = {need.key for trial in grid for need in replace(trial, fit=QUICK).needs}
    assert len(passes) == len(set(passes))
    assert set(passes) == needs


@pytest.mark.usefixtures("quick")
@pytest.mark.slow
def test_a_method_that_fails_is_said_and_its_cell_does_not_count(tmp_path: Path) -> None:
    wild = TaskLoss(start=Random(), optimiser=Adam(lr=float("inf")), steps=3, check=3, retries=0)
    grid, methods = a_grid(), {PLAIN: Plain(), OURS: QUICK, "wild": wild}
    file = File(tmp_path / "b", SUBJECT)
    measured(grid, methods, jobs_of(grid, methods, 1, 1, ()), file)
    (failed,) = (record for record in file.records.values() if record.error is not None)
    assert failed.method == "wild"
    assert "not finite" in str(failed.error)
    assert summarise(list(methods), file.records.values(), file.content["shared"]) == []


@pytest.mark.usefixtures("quick")
@pytest.mark.slow
def test_controls_are_measured_once_by_both(tmp_path: Path) -> None:
    chosen = (controls.itself, controls.untrained_sender, controls.shuffled_pairs, controls.clustered_noise)
    grid, methods = a_grid(), {PLAIN: Plain(epochs=1), OURS: QUICK}
    per_seam, per_cut = 9 * 2, 3 * 2  # itself and noise depend on the receiver's cut alone
    assert sum(bool(job.trial.control) for job in jobs_of(grid, methods, None, 2, chosen)) == 2 * (per_seam + per_cut)
    jobs, file = jobs_of(grid, methods, 1, 1, chosen), File(tmp_path / "b", SUBJECT)
    measured(grid, methods, jobs, file)
    tried = [job for job in jobs if job.trial.control]
    assert {job.name for job in tried} == {PLAIN, OURS}
    for job in tried:
        how = job.method
        plain = isinstance(how, Plain)
        expected = measure_plain(job.trial, how).accuracy if plain else measure(job.trial).scores["accuracy"].value
        assert file.records[job.key].accuracy == expected, job.trial.control
    said = controls_of(file.records.values())
    assert list(said) == ["itself", "untrained sender", "shuffled pairs", "clustered noise"]


# What is said of it


def a_record(method: str, cut: str, accuracy: float, repeat: int = 0, **other: object) -> Record:
    settings = {"control": "", "steps": 1, "cpu": 1.0, "wall": 1.0, "peak": 1, "flops": 10**9} | other
    return Record(key=("", "", method, "", repeat), seam=(cut, "z"), method=method, accuracy=accuracy, **settings)  # type: ignore[arg-type]


def test_figures_by_hand() -> None:
    records = [
        *(a_record(PLAIN, "a", 0.5, cpu=cpu, repeat=i) for i, cpu in enumerate((10.0, 90.0, 30.0))),
        a_record(PLAIN, "b", 0.6, cpu=50.0),
        a_record(OURS, "a", 0.497, cpu=1.0),
        a_record(OURS, "b", 0.5969, cpu=2.0),
        a_record(PLAIN, "c", 0.6, cpu=1000.0),
    ]
    shared = {"cpu": 4.0, "wall": 4.0, "flops": 2 * 10**9, "cells": 10}
    plain, ours = summarise([PLAIN, OURS], records, shared)
    assert (plain.cell_cpu, plain.matrix_cpu, plain.times_cheaper) == (40.0, 400.0, 1.0)
    assert (ours.cell_cpu, ours.matrix_cpu, ours.cells) == (1.5, 4 + 15.0, 2)
    assert ours.times_cheaper == pytest.approx(400 / 19)
    assert ours.good == 0.5  # exactly 0.3 points less still counts, 0.31 does not
    assert (ours.worst_seam, ours.worst_points) == (("b", "z"), pytest.approx(-0.31))
    assert ours.rate == pytest.approx((2 + 10) / 19)
    unknown = [a_record(PLAIN, "a", 0.5), a_record(OURS, "a", 0.5, flops=None)]
    assert summarise([PLAIN, OURS], unknown, shared)[1].rate is None
    tried = [a_record(*one, control="itself") for one in ((PLAIN, "a", 0.32), (OURS, "a", 0.29))]
    tried += [a_record(*one, control="itself") for one in ((PLAIN, "b", 0.1), (OURS, "b", 0.9))]
    assert controls_of(tried)["itself"] == pytest.approx((0.21, 0.595, -3.0))
    assert json.loads(json.dumps(asdict(tried[0])))["seam"] == ["a", "z"]


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(matrix, "Converged", lambda: TaskLoss(steps=3, check=3))
    line = "matrix zoo:convnet,width=2 zoo:convnet,width=3 --fit-samples 60 --score-samples 50 --sample 1 --repeats 1"
    more = ["--cuts", "stage1", "flatten", "--fit", "task-loss,steps=2,check=2", "--out", str(tmp_path / "new" / "b")]
    assert main([*line.split(), *more]) == 0
    words = " ".join(capsys.readouterr().out.split())
    for part in (
        "A → B on digits",
        "60 images to fit, 1,140 to validate, 50 to score; the plain loop does not validate",
        "1 of 4 cells were measured by all methods",
        "times cheaper",
        "products of 1024³ 50 in float32 and 100 in bfloat16",
    ):
        assert part in words, part
    with pytest.raises(SystemExit):
        main(["matrix", "zoo:convnet"])
    assert main([*line.replace("60", "70").split(), *more]) == 2
    assert "another" in capsys.readouterr().err


# The machine


def test_peaks_are_measured_in_the_shapes_of_the_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.machine._SECONDS", 0.0)
    monkeypatch.setattr("benchmarks.machine.SIDE", 64)
    peaks = measure_peaks(convnets())
    assert set(peaks.convolutions) == {"4×8×8", "8×8×8", "8×4×4", "16×4×4", "16×2×2"}
    for rates in (peaks.products, *peaks.convolutions.values()):
        assert set(rates) == {"float32", "bfloat16"}
        assert min(rates.values()) > 0
    assert peaks.convolution("float32") == max(rates["float32"] for rates in peaks.convolutions.values())
    assert Peaks(peaks.products, {}).convolution("float32") is None


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets the peak be set back")
def test_memory_is_that_of_the_work_alone() -> None:
    size = 200 * 2**20

    def held(work: Callable[[], object]) -> int:
        with spending() as spent:
            work()
        assert not spent.since_start
        return spent.peak

    small = held(lambda: None)
    assert held(lambda: bytearray(b"\1") * size) > small + 0.9 * size
    assert held(lambda: None) < small + 0.3 * size


def test_time_is_counted_though_work_fails() -> None:
    with suppress(ZeroDivisionError), spending() as spent:
        _ = sum(range(10**6)) / 0
    assert spent.cpu > 0
    assert spent.wall > 0
    assert spent.peak > 0
