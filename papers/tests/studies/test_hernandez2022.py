"""The studies of hernandez2022: each claim's figure from planted matrices, and what is planned of which networks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations, product
from math import nan

import numpy as np
import pandas as pd
import pytest
import torch

from suture import Network
from suture.common.errors import DataError
from suture.core.stitches import Conv, StridedConv, UpsampledConv
from suture.fits import LeastSquares
from suture.measurement.trials.trial import Trial
from suture.zoo.models import resolve
from suture_papers import Study, scale_named
from suture_papers.base.cells import Tables, Where, number_pair
from suture_papers.base.claims import Decided, decide_by_recipe
from suture_papers.base.contrasts import Above, ByDepth, Contrast, ShareOfAxis, ShareOfLower
from suture_papers.base.quantities import PerUnit
from suture_papers.base.scale import PAPER, SCALES, SMALL, Scale, stand_in
from suture_papers.base.study import Deferred
from suture_papers.hernandez2022 import STUDIES
from suture_papers.hernandez2022.plans import SHAPES, name_of
from suture_papers.networks.base_model import BaseModel
from suture_papers.recipes import hernandez2022, hernandez2022_copy


@pytest.fixture(autouse=True)
def _decided_on_one_stitch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let planted figures decide however near they are to their thresholds, which test_claims is about."""
    monkeypatch.setattr("suture_papers.base.claims.NEAR", 0.0)


Accuracy = Callable[[float, float], float]
QUARTERS, THIRDS = (0.25, 0.5, 0.75, 1.0), (1 / 3, 2 / 3, 1.0)
DEFAULT, PUBLISHED = "Converged()", "hernandez2022"


def study(name: str) -> Study:
    return next(one for one in STUDIES if one.id == name)


def matrix(unit: int, accuracy: Accuracy, depths: Sequence[float] = QUARTERS, **columns: object) -> pd.DataFrame:
    """The rows of one pair of networks, whose accuracy is a function of the depths of sender and receiver."""
    row = {"study": "hernandez", "status": "ok", "score": "accuracy", "unit": "fraction", "control": "", "seed": 0}
    row |= {"sender": "resnet18", "receiver": "another resnet18", "stitch": "Conv()", "fit": DEFAULT}
    row |= {"fit_data": "cifar10/fit", "score_data": "cifar10/score", "network_seed": unit, "n": 5_000}
    row |= {"sender_score": 0.9, "receiver_score": 0.9, "representation_error": 1.0, **columns}
    row["published"] = row["fit"] != DEFAULT
    cells = [
        {
            **row,
            "sender_cut": f"layer{math.ceil(4 * start)}.{start}",
            "receiver_cut": f"layer{math.ceil(4 * end)}.{end}",
            "sender_depth": start,
            "receiver_depth": end,
            "stitched": accuracy(start, end),
            "penalty": 100 * (0.9 - accuracy(start, end)),
        }
        for start, end in product(depths, repeat=2)
    ]
    return pd.DataFrame(cells)


def triangle(late: float, early: float) -> Accuracy:
    return lambda sender, receiver: late if sender >= receiver else early


def diagonal(near: float, far: float) -> Accuracy:
    return lambda sender, receiver: near if abs(sender - receiver) <= 0.25 else far


FIRST, SECOND = map(name_of, SHAPES)


def unequal(accuracy: Accuracy, groups: int = 5, **columns: object) -> list[pd.DataFrame]:
    """Matrices of five networks of each shape, of which two meet in both directions."""
    return [
        matrix(number_pair(*ends), accuracy, sender=sender, receiver=receiver, **columns)  # type: ignore[arg-type]
        for seed in range(10, 10 + groups)
        for sender, receiver, ends in ((FIRST, SECOND, (seed, seed + 20)), (SECOND, FIRST, (seed + 20, seed)))
    ]


def equal(name: str, accuracy: Accuracy, start: int = 10) -> list[pd.DataFrame]:
    """Matrices of all ordered pairs of five networks of one shape."""
    pairs = permutations(range(start, start + 5), 2)
    return [matrix(number_pair(a, b), accuracy, sender=name, receiver=f"another {name}") for a, b in pairs]


def decided(name: str, *tables: pd.DataFrame) -> tuple[Decided, ...]:
    trials = pd.concat(tables, ignore_index=True)
    return tuple(claim.decide({"trials": trials}) for claim in study(name).claims)


def values(found: Sequence[Decided]) -> list[float]:
    return [round(one.figure.value, 9) if one.figure is not None else nan for one in found]


def test_all_seven_rows_of_the_paper_are_there() -> None:
    random = [f"hernandez-random-{role}" for role in ("both", "receiver", "sender")]
    rows = ["hernandez-2", "hernandez-2d", "hernandez-3", *random, "hernandez-copy"]
    assert [one.id for one in STUDIES] == [*rows, "hernandez-triangle"]  # the last is a question to the paper


# --- the claims, from planted matrices --------------------------------------------------------------------------------


def test_triangles_are_late_minus_early_by_each_fit() -> None:
    by_default = unequal(triangle(0.85, 0.5))
    # The published fit has the outer cuts alone, one way: there late is 0.6, 30 pp from the receiver, and early 0.5.
    by_published = [
        one for one in unequal(triangle(0.6, 0.5), depths=(0.25, 1.0), fit=PUBLISHED) if one["sender"].iloc[0] == FIRST
    ]
    found = decided("hernandez-2", *by_default, *by_published)
    assert values(found) == [35.0, 100.0, 35.0, 35.0, 35.0, 10.0]
    told = ["reproduced", "reproduced", *["reported"] * 4]
    assert [one.verdict for one in found] == told
    assert [one.figure.networks for one in found if one.figure] == [5] * 6
    tables = {"trials": pd.concat([*by_default, *by_published])}
    recipe = decide_by_recipe(study("hernandez-2").claims, tables).values()
    assert [(one.verdict, round(one.figure.value, 9)) for one in recipe if one.figure] == [
        ("reproduced", 10.0),
        ("not reproduced", 0.0),
    ]


def test_triangles_by_stage_count_the_cuts_of_one_stage_together() -> None:
    depths = (0.1, 0.2, 0.6, 0.9)  # of stages 1, 1, 3 and 4
    by_stage: Accuracy = lambda a, b: 0.8 if math.ceil(4 * a) >= math.ceil(4 * b) else 0.4  # noqa: E731
    rows = {"trials": matrix(0, by_stage, depths)}
    assert ByDepth("difference", stages=True).read(rows).loc[0] == pytest.approx(40)
    # By depth one cell of stage 1 into stage 1 is early to late: the mean there is (0.8 + 5 × 0.4) / 6.
    assert ByDepth("difference").read(rows).loc[0] == pytest.approx(80 - 280 / 6)


def test_the_sample_of_the_default_fit_is_the_published_fits_cells() -> None:
    # Only the corners say 0.9 − 0.1: elsewhere all cells are equal.
    corners: Accuracy = lambda a, b: {(1.0, 0.25): 0.9, (0.25, 1.0): 0.1}.get((a, b), 0.5)  # noqa: E731
    rows = pd.concat([matrix(0, corners), matrix(0, corners, (0.25, 1.0), fit=PUBLISHED)])
    like = ByDepth("difference", like=Where(fit="published")).read({"trials": rows})
    # Late to early are the two on the diagonal and the corner: (0.5 + 0.5 + 0.9) / 3; early to late is 0.1.
    assert like.loc[0] == pytest.approx(100 * (1.9 / 3 - 0.1))
    assert ByDepth("difference").read({"trials": rows}).loc[0] == pytest.approx(100 * (5.4 / 10 - 2.6 / 6))


def test_diagonals_of_equal_shapes_stand_against_the_triangle_and_those_of_unequal_ones() -> None:
    """Near the diagonal it is 0.9 for equal shapes and 0.7 for unequal ones; below it 0.6, above it 0.2."""

    def banded(near: float) -> Accuracy:
        return lambda a, b: near if abs(a - b) <= 0.25 else 0.6 if a > b else 0.2

    tables = [*equal(FIRST, banded(0.9)), *equal(SECOND, banded(0.9), 30), *unequal(banded(0.7))]
    tables = [one.replace({"sender_cut": {f"layer{i}.{i / 4}": f"layer{i}.1" for i in range(1, 5)}}) for one in tables]
    found = decided("hernandez-2d", *tables)
    lower = 100 * ((7 * 0.9 + 3 * 0.6) / 10 - (3 * 0.9 + 3 * 0.2) / 6)  # of ten late cells seven are near
    # Without ties: six near the diagonal, of the others three late and three early.
    assert values(found) == pytest.approx([30.0, 20.0, 20.0, lower] * 2)
    assert [one.verdict for one in found] == ["reproduced", "reproduced", "reported", "reproduced"] * 2


def test_a_triangle_alone_is_no_diagonal() -> None:
    table = {"trials": matrix(0, triangle(0.8, 0.4))}
    # Of the ten cells near the diagonal seven are late to early, four of them on it; of the six others three.
    assert ByDepth("near_difference").read(table).loc[0] == pytest.approx(40 * (7 / 10 - 3 / 6))
    assert ByDepth("near_difference", ties=False).read(table).loc[0] == pytest.approx(0)
    both: Accuracy = lambda a, b: diagonal(0.2, 0.0)(a, b) + triangle(0.6, 0.4)(a, b)  # noqa: E731
    assert ByDepth("near_difference", ties=False).read({"trials": matrix(0, both)}).loc[0] == pytest.approx(20)


def test_larger_networks_are_reported_each_way_by_each_fit() -> None:
    pairs = (("resnet18", "another resnet18"), ("resnet18", "resnet34"), ("resnet34", "resnet18"))
    tables = [
        matrix(0, triangle(0.5 + 0.1 * way + 0.05 * (fit == PUBLISHED), 0.5), sender=a, receiver=b, fit=fit)
        for way, (a, b) in enumerate(pairs, 1)
        for fit in (DEFAULT, PUBLISHED)
    ]
    found = decided("hernandez-3", *tables)
    assert values(found) == pytest.approx([10, 20, 30, 15, 25, 35])
    assert {one.verdict for one in found} == {"reported"}


def test_untrained_both_reads_the_worst_cell_and_the_spread_of_cells() -> None:
    column: Accuracy = lambda sender, receiver: 0.2 if receiver <= 0.5 else 0.4  # noqa: E731
    tables = [matrix(unit, column, control="untrained both") for unit in range(5)]
    trained = [matrix(unit, triangle(0.9, 0.5)) for unit in range(5)]
    found = decided("hernandez-random-both", *tables, *trained)
    of_trained = 40 * math.sqrt(10 / 16 * 6 / 16)
    assert values(found)[:5] == pytest.approx([40.0, 10.0 - of_trained, 10.0, 0.0, 100.0])
    assert [one.verdict for one in found[:5]] == ["reproduced", "reproduced", *["reported"] * 3]
    assert {one.verdict for one in found[5:]} == {"not measured"}


def test_an_untrained_receiver_is_served_late_from_late_layers() -> None:
    late: Accuracy = lambda sender, receiver: 0.7 if min(sender, receiver) > 0.6 else 0.4  # noqa: E731
    tables = [matrix(unit, late, THIRDS, control="untrained receiver") for unit in range(5)]
    found = decided("hernandez-random-receiver", *tables)
    assert values(found)[0] == pytest.approx(30.0)
    assert found[0].verdict == "reproduced"


def test_an_untrained_sender_serves_early_layers() -> None:
    early: Accuracy = lambda sender, receiver: 0.6 if receiver < 0.4 else 0.5  # noqa: E731
    tables = [matrix(unit, early, THIRDS, control="untrained sender") for unit in range(5)]
    found = decided("hernandez-random-sender", *tables)
    assert values(found)[:2] == pytest.approx([10.0, 10.0])
    assert [one.verdict for one in found[:2]] == ["reproduced", "reported"]


def test_copying_tells_its_four_fits_apart_at_every_scale() -> None:
    for name in SCALES:
        scale = scale_named(name, stand_in)
        fits = (
            scale.fit,
            scale.published(hernandez2022),
            scale.published(hernandez2022_copy),
            LeastSquares(rescale=False),
        )
        made = [
            matrix(0, triangle(0.1 * i, 0.1 * i), fit=str(fit), representation_error=float(i)).assign(published=i > 1)
            for i, fit in enumerate(fits, 1)
        ]
        assert values(decided("hernandez-copy", *made)) == pytest.approx([10, 20, 30, 40, 1, 2, 3, 4, 0, 0, 0, 0])


# --- the quantities ---------------------------------------------------------------------------------------------------


def test_welchs_interval_is_that_of_the_formula() -> None:
    a, b = [30.0, 34.0, 41.0], [10.0, 11.0, 12.0, 17.0, 8.0]
    rows = [matrix(unit, triangle(0.5 + value / 100, 0.5)) for unit, value in enumerate(a)]
    rows += [matrix(9 + unit, triangle(0.5 + v / 100, 0.5), receiver="resnet34") for unit, v in enumerate(b)]
    table = {"trials": pd.concat(rows)}
    contrast = Contrast(*(ByDepth("difference", Where(receiver=name)) for name in ("another *", "resnet34")))
    figure = contrast.estimate(table)
    va, vb = np.var(a, ddof=1) / 3, np.var(b, ddof=1) / 5
    freedom = (va + vb) ** 2 / (va**2 / 2 + vb**2 / 4)
    assert 2.9 < freedom < 3.1  # where 95 % of t lie within about 3.2
    t = 3.182 + (3 - freedom) * (4.303 - 3.182)  # of tables: 3.182 at 3, 4.303 at 2 degrees of freedom
    assert figure.value == pytest.approx(35 - 11.6)
    assert figure.high - figure.value == pytest.approx(t * math.sqrt(va + vb), rel=0.03)
    assert (figure.pairs, figure.networks) == (8, 3)


@dataclass(frozen=True)
class Planted(PerUnit):
    """Numbers by pair that are given."""

    numbers: "pd.Series[float]"

    def read(self, tables: Tables) -> "pd.Series[float]":
        return self.numbers


def test_what_networks_add_to_both_groups_is_allowed_for() -> None:
    """Five networks in all ordered pairs, and each with a partner of its own: what they add is opposed in the two."""
    alike = [(a, b) for a in range(1, 6) for b in range(1, 6) if a != b]
    unlike = [(a, 20 + a) for a in range(1, 6)] + [(20 + a, a) for a in range(1, 6)]
    random, missed = np.random.default_rng(0), 0
    for _ in range(400):
        added, noise = random.normal(size=6), random.normal(0, 0.3, size=(2, 20))
        first = {number_pair(a, b): added[a] + added[b] + noise[0, i] for i, (a, b) in enumerate(alike)}
        second = {number_pair(a, b): noise[1, i] - 2 * added[min(a, b)] for i, (a, b) in enumerate(unlike)}
        figure = Contrast(*(Planted(pd.Series(group)) for group in (first, second))).estimate({})
        assert (figure.networks, figure.pairs) == (5, 30)
        missed += not figure.low <= 0 <= figure.high
    assert missed <= 32  # 5 % are 20, and Welch's interval misses in some 70


def test_a_contrast_of_few_units_has_no_interval() -> None:
    rows = [matrix(unit, triangle(0.8, 0.5)) for unit in range(2)]
    rows += [matrix(9 + unit, triangle(0.6, 0.5), receiver="resnet34") for unit in range(3)]
    tables = {"trials": pd.concat(rows)}
    contrast = Contrast(*(ByDepth("difference", Where(receiver=name)) for name in ("another *", "resnet34")))
    assert contrast.estimate(tables).value == pytest.approx(20)
    assert not contrast.estimate(tables).decides


def test_two_matrices_of_one_unit_are_refused() -> None:
    rows = pd.concat([matrix(0, triangle(0.8, 0.5)), matrix(0, triangle(0.8, 0.5), receiver="resnet34")])
    with pytest.raises(DataError, match="pair 0 has several matrices"):
        ByDepth("difference").read({"trials": rows})


def test_the_share_of_the_lower_triangle_has_the_diagonal_in_it() -> None:
    """The receiver has 0.9: of ten late cells, the seven near the diagonal are within 10 pp of that."""
    rows = {"trials": matrix(0, diagonal(0.85, 0.5))}
    assert ShareOfLower(10.0).read(rows).loc[0] == pytest.approx(70)


def test_the_share_of_an_axis_is_of_the_means_of_its_cuts() -> None:
    rows = {"trials": matrix(0, lambda sender, receiver: 0.1 * sender + 0.3 * receiver)}
    shares = [ShareOfAxis("stitched", f"{role}_cut").read(rows).loc[0] for role in ("sender", "receiver")]  # type: ignore[arg-type]
    assert shares == pytest.approx([10, 90])


def test_above_leaves_the_inside_out_of_the_others() -> None:
    rows = matrix(0, lambda sender, receiver: sender * receiver, THIRDS)
    inside = Where(sender_depth=(1.0, 1.0), receiver_depth=(1.0, 1.0))
    others = [a * b for a, b in product(THIRDS, repeat=2)][:-1]
    found = Above("stitched", inside, Where()).read({"trials": rows})
    assert found.loc[0] == pytest.approx(100 * (1 - sum(others) / 8))


# --- the plans --------------------------------------------------------------------------------------------------------


def networks(part: Deferred) -> list[Network]:
    """Untrained networks in place of a part's, the same whenever they are asked for."""
    bases = [base for base in part.bases if isinstance(base, BaseModel)]
    assert len(bases) == len(part.bases)
    return [untrained(base.source, base.seed, base.name, tuple(base.samples.images.shape[1:])) for base in bases]


@cache
def untrained(source: str, seed: int, name: str, shape: tuple[int, ...]) -> Network:
    """A network of random weights; plans are made of it, and nothing is fitted."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        built = resolve(source)
    example = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    return Network(built.model, example=example, name=name, preprocess=built.preprocess, copy=False)


def planned(name: str, scale: Scale, part: int = 0) -> list[Trial]:
    later = study(name).plan(scale)[part]
    assert isinstance(later, Deferred)
    return list(later.make(*networks(later)))


def test_no_two_networks_of_one_seed_are_stitched() -> None:
    for one, name in product(STUDIES, SCALES):
        for part in one.plan(scale_named(name, stand_in)):
            sender, receiver = part.bases
            assert isinstance(sender, BaseModel)
            assert isinstance(receiver, BaseModel)
            assert sender.seed != receiver.seed, (one.id, name)


def test_the_papers_scale_has_all_256_ordered_pairs_of_16_shapes() -> None:
    parts = study("hernandez-2").plan(scale_named(PAPER, stand_in))
    shapes = {tuple(base.source for base in part.bases) for part in parts}  # type: ignore[attr-defined]
    assert len(parts) == len(shapes) == 256
    assert len({source for pair in shapes for source in pair}) == 16
    assert all("width=64" in source for pair in shapes for source in pair)


def test_every_end_of_a_stage_meets_every_other_without_a_batchnorm() -> None:
    trials = [t for t in planned("hernandez-2", Scale(SMALL, stand_in)) if str(t.fit) == "Converged()"]
    sender, receiver = (trials[0].sender.name, trials[0].receiver.name)
    assert (sender, receiver) == ("resnet18", "resnet(1,1,1,1)")
    assert len({(t.sender_cut, t.receiver_cut) for t in trials}) == len(trials) == 4 * 4
    families = {type(t.family): t.family for t in trials}
    assert set(families) == {Conv, StridedConv, UpsampledConv}
    assert not any(family.batchnorm for family in families.values())  # type: ignore[attr-defined]


def test_the_published_fit_joins_the_ends_of_stages_one_way_at_its_full_length() -> None:
    scale = Scale(SMALL, stand_in)
    published = []
    for part in study("hernandez-2").plan(scale)[::5]:  # one pair of each way
        assert isinstance(part, Deferred)
        trials = [t for t in part.make(*networks(part)) if str(t.fit) != "Converged()"]
        assert {t.fit for t in trials} <= {hernandez2022}
        published.append((part.bases[0].name, len(trials)))  # type: ignore[attr-defined]
    assert published == [(FIRST, 16), (SECOND, 0)]


def test_of_two_networks_of_two_shapes_both_ways_are_planned_and_no_network_meets_a_third() -> None:
    ends = [
        frozenset((base.name, base.seed) for base in part.bases)
        for part in study("hernandez-2").plan(Scale(SMALL, stand_in))
    ]  # type: ignore[attr-defined]
    assert sorted(map(ends.count, set(ends))) == [2] * 5
    assert len({one for pair in ends for one in pair}) == 10


def test_untrained_networks_take_the_place_of_every_trained_one() -> None:
    for role in ("both", "receiver", "sender"):
        trials = planned(f"hernandez-random-{role}", scale_named("tiny"))
        assert {trial.control for trial in trials} == {f"untrained {role}"}


def test_small_controls_are_quick_at_every_cell_and_converged_at_the_corners() -> None:
    trials = planned("hernandez-random-sender", Scale(SMALL, stand_in))
    cells = {fit: {t.seam for t in trials if str(t.fit) == fit} for fit in ("Quick()", "Converged()")}
    assert {fit: len(own) for fit, own in cells.items()} == {"Quick()": 16, "Converged()": 4}
    assert cells["Converged()"] < cells["Quick()"]


def test_where_the_default_fit_was_made_quick_is_not_read() -> None:
    """Quick gives 0.3 at every cell, the default fit 0.5 at the corners: 4 of 16 cells."""
    quick = matrix(0, lambda a, b: 0.3, fit="Quick()").assign(published=False)
    full = matrix(0, lambda a, b: 0.5, (0.25, 1.0))
    rows = {"trials": pd.concat([quick, full], ignore_index=True)}
    assert len(Where().select(rows)) == 16
    assert Where().select(rows)["stitched"].mean() == pytest.approx((4 * 0.5 + 12 * 0.3) / 16)


def test_equal_shapes_come_beside_the_very_trials_of_unequal_ones() -> None:
    scale = scale_named("tiny")
    first = {t.key for t in planned("hernandez-2", scale) if str(t.fit) == str(scale.fit)}
    assert {t.key for t in planned("hernandez-2d", scale)} == first
