"""The benchmark of a matrix: the plain loop, which cells in which order, what is kept, and what is said of it."""

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from suture.common.errors import DataError, FitError, StoreError, SutureError
from suture.common.processor import processor
from suture.core.seam import Seam
from suture.fits import LeastSquares, Random, TaskLoss
from suture.measurement.trials import controls, plans
from suture.measurement.trials.measure import measure
from suture.measurement.trials.trial import Trial
from suture.report.terminal import bench as report
from suture.runs.bench import (
    DEFAULT,
    Folder,
    Peaks,
    Plain,
    Record,
    Result,
    Shared,
    Subject,
    benchmark,
    least_squares_then_adam,
    matrix,
    measure_peaks,
    measure_plain,
    methods_for,
    plain_stitch,
    run,
    summarise,
)
from suture.runs.bench.cells import interleaved, spread
from suture.runs.bench.flops import fitted_flops, per_image, plain_flops, shared_flops
from suture.runs.bench.methods import LEAST_SQUARES, OURS, PLAIN
from suture.runs.bench.resource_use import spending
from trained import convnets, few_digits, hybrids

CUTS = ("stage1", "stage3", "flatten")
QUICK = TaskLoss(steps=2, check=2)


def a_grid(cuts: tuple[str, ...] = CUTS, samples: int = 60) -> list[Trial]:
    a, b = convnets()
    data = few_digits().limited(fit=samples, score=50)
    return list(plans.matrix(a, b, data=data, cuts=cuts, controls=()))


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
    images = torch.cat([trial.fit_data.images, trial.validation_data.images])
    labels = torch.cat([trial.fit_data.labels, trial.validation_data.labels])
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
    assert result.steps == 5 * ((300 + len(trial.validation_data)) // 128)


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
    grid, known = a_grid(), methods_for(54, [("quick", QUICK)])
    jobs = interleaved(grid[:2], known, 2)
    seams = [(job.repeat, job.trial.sender_cut, job.trial.receiver_cut) for job in jobs]
    assert seams == [(r, t.sender_cut, t.receiver_cut) for r in (0, 1) for t in grid[:2] for _ in known]
    for first in range(0, len(jobs), len(known)):
        assert {job.method for job in jobs[first : first + len(known)]} == set(known)
    assert [jobs[i].method.name for i in (0, 4, 8, 12)] == [PLAIN, LEAST_SQUARES, LEAST_SQUARES, OURS]
    assert len({job.name for job in jobs}) == len(jobs)
    assert [job.trial.fit for job in jobs if job.method.name == "quick"] == [QUICK] * 4


def test_the_methods() -> None:
    plain, csiszarik, ours = methods_for(9000)
    assert (plain.how, ours.how) == (Plain(), DEFAULT)
    assert csiszarik.how == least_squares_then_adam(9000)
    assert (least_squares_then_adam(9000).steps, least_squares_then_adam(9000).batch) == (350, 128)
    assert (least_squares_then_adam(50).steps, least_squares_then_adam(50).batch) == (5, 50)
    assert len({plain.key, csiszarik.key, ours.key, methods_for(9001)[1].key}) == 3
    with pytest.raises(SutureError, match="two methods are called 'default'"):
        methods_for(9000, [("default", QUICK)])


# What is measured and kept

PEAKS = Peaks({"float32": 50.0, "bfloat16": 100.0}, {"4×8×8": {"float32": 20.0, "bfloat16": 40.0}})
SUBJECT = Subject("C", "D", "digits", ("a", "b"), (60, 7, 50), "a processor", "2.0", 3, ("a day", "suture bench"))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is known, and the plain loop takes two steps."""
    monkeypatch.setattr(matrix, "measure_peaks", lambda networks: PEAKS)


def a_benchmark(sample: int | None = 2, repeats: int = 3, **settings: object) -> matrix.Benchmark:
    known = [replace(method, how=QUICK) if method.name == OURS else method for method in methods_for(60)]
    return benchmark(a_grid(), known, sample=sample, repeats=repeats, **settings)  # type: ignore[arg-type]


@pytest.mark.usefixtures("quick")
def test_what_is_said_is_what_the_files_say(tmp_path: Path) -> None:
    planned = a_benchmark(sample=2, repeats=3)
    summary = summarise(run(planned, Folder(tmp_path), SUBJECT))
    files = [json.loads(path.read_text()) for path in (tmp_path / "measurements").iterdir()]
    shared = json.loads((tmp_path / "shared.json").read_text())
    assert len(files) == 2 * 3 * 3
    assert shared["cells"] == summary.grid == 9
    seams = {(trial.sender_cut, trial.receiver_cut) for trial in planned.trials}

    def of(method: str, seam: tuple[str, str], name: str) -> list[float]:
        mine = [one for one in files if one["method"] == method]
        return [one[name] for one in mine if (one["sender_cut"], one["receiver_cut"]) == seam]

    plain_matrix = 9 * fmean(median(of(PLAIN, seam, "cpu")) for seam in seams)
    for method in summary.methods:
        cpu = [median(of(method.name, seam, "cpu")) for seam in seams]
        accuracy = {seam: of(method.name, seam, "accuracy") for seam in seams}
        points = {seam: 100 * (accuracy[seam][0] - of(PLAIN, seam, "accuracy")[0]) for seam in seams}
        own = 0 if method.name == PLAIN else shared["cpu"]
        flops = fmean(of(method.name, seam, "flops")[0] for seam in seams)
        shared_too = 0 if method.name == PLAIN else shared["flops"]
        assert all(len(set(values)) == 1 for values in accuracy.values())
        assert method.cell_cpu == pytest.approx(median(cpu))
        assert method.cells_cpu == pytest.approx(sum(cpu))
        assert method.shared_cpu == own
        assert method.matrix_cpu == pytest.approx(own + 9 * fmean(cpu))
        assert method.times_cheaper == pytest.approx(plain_matrix / method.matrix_cpu)
        assert method.cell_wall == pytest.approx(median(median(of(method.name, seam, "wall")) for seam in seams))
        assert method.accuracy == pytest.approx(fmean(values[0] for values in accuracy.values()))
        assert method.good == fmean(value >= -0.3 for value in points.values())
        assert method.worst_points == pytest.approx(min(points.values()))
        assert points[method.worst_seam] == pytest.approx(method.worst_points)
        assert method.peak == max(one["peak"] for one in files if one["method"] == method.name)
        assert method.rate == pytest.approx((shared_too + 9 * flops) / method.matrix_cpu / 1e9)


@pytest.mark.usefixtures("quick")
def test_the_numbers_are_those_of_the_library_and_of_the_loop(tmp_path: Path) -> None:
    planned = a_benchmark(sample=1, repeats=1)
    result = run(planned, Folder(tmp_path), SUBJECT)
    for job, record in zip(planned.jobs, result.records, strict=True):
        alone = measure_plain(job.trial).accuracy if job.method.name == PLAIN else None
        expected = alone if alone is not None else measure(job.trial).scores["accuracy"].value
        assert (record.accuracy, record.method) == (expected, job.method.name)


@pytest.mark.usefixtures("quick")
def test_only_what_is_missing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = a_benchmark(sample=2, repeats=1)
    assert len(planned.jobs) == 6
    before = run(planned, Folder(tmp_path), SUBJECT)
    lost = [planned.jobs[0], planned.jobs[4]]
    for job in lost:
        (tmp_path / "measurements" / f"{job.name}.json").unlink()
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    done: list[str] = []
    record = matrix._record
    monkeypatch.setattr(matrix, "_record", lambda job, cache: done.append(job.name) or record(job, cache))
    after = run(planned, Folder(tmp_path), replace(SUBJECT, made=("later", "another command")))
    assert done == [job.name for job in lost]
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    assert after.subject.made == ("a day", "suture bench")
    assert [one.accuracy for one in after.records] == [one.accuracy for one in before.records]
    assert after.shared == before.shared
    assert {path.name for path in tmp_path.iterdir()} == {"bench.json", "shared.json", "peaks.json", "measurements"}


@pytest.mark.usefixtures("quick")
def test_a_finished_folder_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = a_benchmark(sample=1, repeats=1)
    before = run(planned, Folder(tmp_path), SUBJECT)
    for name in ("_record", "measure_peaks", "fill"):
        monkeypatch.setattr(matrix, name, lambda *given: pytest.fail("something was measured again"))
    assert summarise(run(planned, Folder(tmp_path), SUBJECT)) == summarise(before)


@pytest.mark.usefixtures("quick")
def test_a_larger_sample_takes_over_a_smaller_one(tmp_path: Path) -> None:
    small, large = a_benchmark(sample=1, repeats=1), a_benchmark(sample=2, repeats=2)
    assert {job.name for job in small.jobs} < {job.name for job in large.jobs}
    run(small, Folder(tmp_path), SUBJECT)
    assert len(run(large, Folder(tmp_path), SUBJECT).records) == 2 * 2 * 3


@pytest.mark.usefixtures("quick")
def test_an_interruption_keeps_what_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned, seen, record = a_benchmark(sample=1, repeats=2), [0], matrix._record

    def interrupted(job: matrix.Job, cache: object) -> Record:
        seen[0] += 1
        if seen[0] == 3:
            raise KeyboardInterrupt
        return record(job, cache)  # type: ignore[arg-type]

    monkeypatch.setattr(matrix, "_record", interrupted)
    with pytest.raises(KeyboardInterrupt, match=r"2 of 6 measurements are in .*; the same command goes on"):
        run(planned, Folder(tmp_path), SUBJECT)
    assert len(list((tmp_path / "measurements").iterdir())) == 2
    assert len(run(planned, Folder(tmp_path), SUBJECT).records) == 6
    assert not list(tmp_path.glob("tmp*"))


@pytest.mark.usefixtures("quick")
def test_shared_work_is_of_the_whole_grid_and_no_cell_does_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled: list[int] = []
    fill = matrix.fill
    monkeypatch.setattr(matrix, "fill", lambda cache, needs: filled.append(len(set(needs))) or fill(cache, needs))
    chunks = matrix.Activations._chunks
    passes: list[str] = []
    monkeypatch.setattr(matrix.Activations, "_chunks", lambda self, need: passes.append(need.key) or chunks(self, need))
    planned = a_benchmark(sample=1, repeats=1)
    run(planned, Folder(tmp_path), SUBJECT)
    needs = {need.key for trial in planned.grid for need in replace(trial, fit=QUICK).needs}
    assert len(filled) == 1
    assert len(passes) == len(set(passes))
    assert set(passes) == needs


@pytest.mark.usefixtures("quick")
def test_a_method_that_fails_is_said_and_its_cell_does_not_count(tmp_path: Path) -> None:
    wild = TaskLoss(start=Random(), optimiser=matrix_adam(float("inf")), steps=3, check=3, retries=0)
    known = methods_for(60, [("wild", wild)])
    known = tuple(replace(method, how=QUICK) if method.name == OURS else method for method in known)
    result = run(benchmark(a_grid(), known, sample=1, repeats=1), Folder(tmp_path), SUBJECT)
    failed = [record for record in result.records if record.error is not None]
    assert [record.method for record in failed] == ["wild"]
    assert "not finite" in str(failed[0].error)
    summary = summarise(result)
    assert (summary.failed, summary.measured, summary.methods) == (1, 0, ())


def matrix_adam(lr: float) -> object:
    from suture.fits.optimisers import Adam

    return Adam(lr=lr)


@pytest.mark.usefixtures("quick")
def test_controls_are_measured_once_by_both(tmp_path: Path) -> None:
    chosen = (controls.itself, controls.untrained_sender, controls.shuffled_pairs, controls.clustered_noise)
    planned = a_benchmark(sample=None, repeats=1, controls=chosen)
    per_seam, per_cut = 9 * 2, 3 * 2  # itself and noise depend on the receiver's cut alone
    assert len(planned.controls) == 2 * per_seam + 2 * per_cut
    assert {job.method.name for job in planned.controls} == {PLAIN, OURS}
    small = a_benchmark(sample=1, repeats=1, controls=chosen)
    result = run(small, Folder(tmp_path), SUBJECT)
    for job, record in zip(small.controls, result.controls, strict=True):
        plain = job.method.name == PLAIN
        expected = measure_plain(job.trial).accuracy if plain else measure(job.trial).scores["accuracy"].value
        assert (record.control, record.accuracy) == (job.trial.control, expected)
    assert [control.control for control in summarise(result).controls] == [
        "itself",
        "untrained sender",
        "shuffled pairs",
        "clustered noise",
    ]


def test_wrong_requests_are_refused() -> None:
    with pytest.raises(DataError, match="sample=0: give at least 1"):
        a_benchmark(sample=0)
    with pytest.raises(DataError, match="repeats=0: give at least 1"):
        a_benchmark(repeats=0)
    with pytest.raises(DataError, match="at least one seam"):
        benchmark([], methods_for(60))


def test_another_benchmark_is_refused(tmp_path: Path) -> None:
    Folder(tmp_path / "a").open(SUBJECT)
    for change, said in (
        ({"fingerprints": ("a", "c")}, "other networks or data: C → D on digits"),
        ({"processor": "another"}, "another processor: a processor"),
        ({"torch": "2.1"}, "another torch: 2.0"),
        ({"version": 4}, "an earlier version of this library"),
    ):
        with pytest.raises(StoreError, match=f"has the benchmark of {said}; give another folder as --out"):
            Folder(tmp_path / "a").open(replace(SUBJECT, **change))  # type: ignore[arg-type]
    assert Folder(tmp_path / "a").open(replace(SUBJECT, made=("x", "y"))) == SUBJECT
    with pytest.raises(StoreError, match="is no benchmark's folder, and not empty"):
        Folder(tmp_path).open(SUBJECT)


def test_a_damaged_file_is_said(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.open(SUBJECT)
    (tmp_path / "measurements" / "x.json").write_text("{")
    with pytest.raises(StoreError, match=r"x\.json is damaged .*; remove it"):
        folder.read("x")


# What is said of it


def a_record(method: str, cut: str, accuracy: float, **other: object) -> Record:
    settings = {"control": "", "fit": "", "repeat": 0, "steps": 1, "cpu": 1.0, "wall": 1.0, "peak": 1, "flops": 10**9}
    return Record(sender_cut=cut, receiver_cut="z", method=method, accuracy=accuracy, **(settings | other))  # type: ignore[arg-type]


def a_result(*records: Record, control_records: tuple[Record, ...] = ()) -> Result:
    known = tuple(method for method in methods_for(60) if method.name in (PLAIN, OURS))
    return Result(SUBJECT, PEAKS, Shared(4.0, 4.0, 2 * 10**9, 10), known, records, control_records)


def test_figures_by_hand() -> None:
    summary = summarise(
        a_result(
            *(a_record(PLAIN, "a", 0.5, cpu=cpu, repeat=i) for i, cpu in enumerate((10.0, 90.0, 30.0))),
            a_record(PLAIN, "b", 0.6, cpu=50.0),
            a_record(OURS, "a", 0.497, cpu=1.0),
            a_record(OURS, "b", 0.5969, cpu=2.0),
            a_record(PLAIN, "c", 0.6, cpu=1000.0),
        )
    )
    plain, ours = summary.methods
    assert (plain.cell_cpu, plain.cells_cpu, plain.matrix_cpu, plain.times_cheaper) == (40.0, 80.0, 400.0, 1.0)
    assert (ours.cell_cpu, ours.cells_cpu, ours.matrix_cpu) == (1.5, 3.0, 4 + 15.0)
    assert ours.times_cheaper == pytest.approx(400 / 19)
    assert ours.good == 0.5  # exactly 0.3 points less still counts, 0.31 does not
    assert (ours.worst_seam, ours.worst_points) == (("b", "z"), pytest.approx(-0.31))
    assert ours.rate == pytest.approx((2 + 10) / 19)
    assert (summary.measured, summary.grid, summary.failed) == (2, 10, 0)


def test_a_rate_that_cannot_be_known_is_left_out() -> None:
    summary = summarise(a_result(a_record(PLAIN, "a", 0.5), a_record(OURS, "a", 0.5, flops=None)))
    assert summary.methods[1].rate is None


def test_what_repeats_differently_is_said() -> None:
    records = [a_record(PLAIN, "a", 0.5), a_record(PLAIN, "a", 0.6, repeat=1), a_record(OURS, "a", 0.5)]
    notes = summarise(a_result(*records)).notes
    assert notes == ("plain loop at a → z gave another accuracy when it was repeated; the first counts",)


@pytest.mark.parametrize(("ours", "sound"), [(0.32, True), (0.30, True), (0.299, False)])
def test_a_control_that_is_lower_is_said(ours: float, sound: bool) -> None:
    records = [a_record(PLAIN, "a", 0.32, control="itself"), a_record(OURS, "a", ours, control="itself")]
    records += [a_record(PLAIN, "b", 0.1, control="itself"), a_record(OURS, "b", 0.9, control="itself")]
    summary = summarise(a_result(a_record(PLAIN, "a", 0.5), a_record(OURS, "a", 0.5), control_records=tuple(records)))
    (control,) = summary.controls
    assert control.sound == sound
    assert (control.plain, control.worst_seam) == (pytest.approx(0.21), ("a", "z"))
    assert ("itself. That flatters" in report.controls_words(summary)) != sound


def test_the_record_is_plain_values() -> None:
    result = a_result(a_record(PLAIN, "a", 0.5), a_record(OURS, "a", 0.5), a_record(OURS, "b", 0.1, error="no"))
    content = json.loads(json.dumps(report.record(summarise(result), result)))
    assert [method["name"] for method in content["methods"]] == [PLAIN, OURS]
    assert content["subject"]["command"] == "suture bench"
    assert content["errors"] == [{"seam": ["b", "z"], "control": "", "method": OURS, "error": "no"}]


# The machine


def test_peaks_are_measured_in_the_shapes_of_the_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suture.runs.bench.peaks._SECONDS", 0.0)
    monkeypatch.setattr("suture.runs.bench.peaks.SIDE", 64)
    peaks = measure_peaks(convnets())
    assert set(peaks.convolutions) == {"4×8×8", "8×8×8", "8×4×4", "16×4×4", "16×2×2"}
    for rates in (peaks.products, *peaks.convolutions.values()):
        assert set(rates) == {"float32", "bfloat16"}
        assert min(rates.values()) > 0
    assert peaks.convolution("float32") == max(rates["float32"] for rates in peaks.convolutions.values())
    assert Peaks(peaks.products, {}).convolution("float32") is None


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
    assert processor()


def test_tokens_and_vectors_are_measured_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "measure_peaks", lambda networks: PEAKS)
    a, b = hybrids()
    data = few_digits().limited(fit=60, score=50)
    grid = plans.matrix(a, b, data=data, sender_cuts=("embed", "hidden"), receiver_cuts="hidden", controls=())
    known = [replace(method, how=QUICK) if method.name == OURS else method for method in methods_for(60)]
    result = run(benchmark(grid, known, sample=None, repeats=1), Folder(tmp_path), SUBJECT)
    assert summarise(result).measured == 2
