"""The studies of hernandez2022: each claim's figure from planted matrices, and what is planned of which networks."""

import math
from collections.abc import Callable, Sequence
from itertools import product
from math import nan

import numpy as np
import pandas as pd
import pytest
import torch

from suture import Network
from suture.common.errors import DataError
from suture.core.stitches import Conv, StridedConv, UpsampledConv
from suture.fits import LeastSquares
from suture.fits.recipes import hernandez2022, hernandez2022_copy
from suture.measurement.trials.trial import Trial
from suture.runs.runners import Deferred
from suture.studies import Study, scale_named
from suture.studies.base.claims import Decided
from suture.studies.base.contrasts import Above, ByDepth, Contrast, Crossed, PerSender
from suture.studies.base.quantities import FEWEST, Where
from suture.studies.base.scale import PAPER, SCALES, SMALL, Scale, stand_in
from suture.studies.hernandez2022 import STUDIES
from suture.studies.hernandez2022.plans import SHAPES, name_of
from suture.zoo.base_model import BaseModel
from suture.zoo.models import resolve

Accuracy = Callable[[float, float], float]
QUARTERS, THIRDS = (0.25, 0.5, 0.75, 1.0), (1 / 3, 2 / 3, 1.0)
DEFAULT, PUBLISHED = "Converged()", "hernandez2022"


def study(name: str) -> Study:
    return next(one for one in STUDIES if one.id == name)


def matrix(unit: int, accuracy: Accuracy, depths: Sequence[float] = QUARTERS, **columns: object) -> pd.DataFrame:
    """The rows of one pair of networks, whose accuracy is a function of the depths of sender and receiver."""
    row = {"study": "hernandez", "status": "ok", "score": "accuracy", "unit": "fraction", "control": "", "seed": 0}
    row |= {"sender": "resnet18", "receiver": "another resnet18", "stitch": "Conv()", "fit": DEFAULT}
    row |= {"fit_data": "cifar10/fit", "score_data": "cifar10/score", "network_seed": unit}
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
        }
        for start, end in product(depths, repeat=2)
    ]
    return pd.DataFrame(cells)


def triangle(late: float, early: float) -> Accuracy:
    return lambda sender, receiver: late if sender >= receiver else early


def diagonal(near: float, far: float) -> Accuracy:
    return lambda sender, receiver: near if abs(sender - receiver) <= 0.25 else far


def crossed(accuracy: Callable[[int, int], Accuracy], first: int = 0) -> list[pd.DataFrame]:
    """The matrices of all ordered pairs of four unequal shapes, of what the numbers of both shapes decide."""
    named = [name_of(shape) for shape in SHAPES]
    pairs = [(a, b) for a, b in product(range(4), repeat=2) if a != b]
    return [
        matrix(unit, accuracy(a, b), sender=named[a], receiver=named[b])
        for unit, (a, b) in enumerate(pairs, start=first)
    ]


def decided(name: str, *tables: pd.DataFrame) -> tuple[Decided, ...]:
    trials = pd.concat(tables, ignore_index=True)
    return tuple(claim.decide({"trials": trials}) for claim in study(name).claims)


def values(found: Sequence[Decided]) -> list[float]:
    return [round(one.figure.value, 9) if one.figure is not None else nan for one in found]


def test_all_seven_rows_of_the_paper_are_there() -> None:
    random = [f"hernandez-random-{role}" for role in ("both", "receiver", "sender")]
    assert [one.id for one in STUDIES] == ["hernandez-2", "hernandez-2d", "hernandez-3", *random, "hernandez-copy"]


# --- the claims, from planted matrices --------------------------------------------------------------------------------


def test_triangles_are_late_minus_early_by_each_fit() -> None:
    by_default = crossed(lambda a, b: triangle(0.8, 0.5))
    # The published fit has the outer cuts alone, of three pairs: there late is 0.6 and early 0.5.
    ends = (0.25, 1.0)
    by_published = [
        matrix(unit, triangle(0.6, 0.5), ends, fit=PUBLISHED, receiver=name_of(SHAPES[unit + 1])) for unit in range(3)
    ]
    found = decided("hernandez-2", *by_default, *by_published)
    assert values(found) == [30.0, 10.0, 30.0, 30.0, 10.0]
    assert [one.verdict for one in found] == ["reproduced", "not reproduced", "reported", "reported", "reported"]
    assert [one.figure.seeds for one in found if one.figure] == [12, 3, 3, 12, 3]


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


def test_diagonals_of_equal_shapes_stand_against_those_of_unequal_ones() -> None:
    shapes = [name_of(shape) for shape in SHAPES]
    equal = [
        matrix(unit, diagonal(0.9, 0.5), sender=shapes[unit // 2], receiver=f"another {shapes[unit // 2]}")
        for unit in range(8)  # both directions of each shape
    ]
    unequal = crossed(lambda a, b: diagonal(0.7, 0.6), first=8)
    found = decided("hernandez-2d", *equal, *unequal)
    # Of equal shapes' ten late cells seven are near, of six early ones three.
    lower = 100 * ((7 * 0.9 + 3 * 0.5) / 10 - (3 * 0.9 + 3 * 0.5) / 6)
    assert values(found) == pytest.approx([30.0, lower, 30.0, 40.0, 10.0])
    assert [one.verdict for one in found] == ["reproduced", "reproduced", "reported", "reported", "reported"]
    assert [one.figure.seeds for one in found if one.figure] == [16, 4, 16, 4, 12]


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
    tables = [matrix(unit, column, control="untrained both") for unit in range(3)]
    trained = [matrix(unit, triangle(0.9, 0.9)) for unit in range(3)]
    found = decided("hernandez-random-both", *tables, *trained)
    assert values(found)[:2] == [40.0, 10.0]
    assert [one.verdict for one in found] == ["reproduced", "reproduced", "not measured", "not measured"]


def test_an_untrained_receiver_is_served_late_from_late_layers() -> None:
    late: Accuracy = lambda sender, receiver: 0.7 if min(sender, receiver) > 0.6 else 0.4  # noqa: E731
    tables = [matrix(unit, late, THIRDS, control="untrained receiver") for unit in range(3)]
    found = decided("hernandez-random-receiver", *tables)
    assert values(found)[0] == pytest.approx(30.0)
    assert found[0].verdict == "reproduced"


def test_an_untrained_sender_serves_early_layers() -> None:
    early: Accuracy = lambda sender, receiver: 0.6 if receiver < 0.4 else 0.5  # noqa: E731
    tables = [matrix(unit, early, THIRDS, control="untrained sender") for unit in range(3)]
    found = decided("hernandez-random-sender", *tables)
    assert values(found)[0] == pytest.approx(10.0)
    assert found[0].verdict == "not reproduced"


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


def test_an_interval_over_senders_and_receivers_is_that_of_their_effects() -> None:
    sends, receives = [0.0, 3.0, 9.0, 4.0], [1.0, 0.0, 0.0, 7.0]
    table = {"trials": pd.concat(crossed(lambda a, b: triangle(0.5 + (sends[a] + receives[b]) / 100, 0.4)))}
    figure = Crossed(ByDepth("difference")).estimate(table)
    assert figure.value == pytest.approx(10 + 4 + 2)
    vs, vr = np.var(sends, ddof=1) / 4, np.var(receives, ddof=1) / 4
    freedom = (vs + vr) ** 2 / (vs**2 / 3 + vr**2 / 3)
    assert 5.9 < freedom < 6  # where 95 % of t lie within 2.447, of tables
    assert figure.high - figure.value == pytest.approx(2.447 * math.sqrt(vs + vr), rel=0.005)
    assert figure.value - figure.low == pytest.approx(figure.high - figure.value)
    over_pairs = ByDepth("difference").estimate(table)
    assert figure.high - figure.low > over_pairs.high - over_pairs.low


def test_pairs_that_have_no_network_in_common_have_no_interval_over_networks() -> None:
    circle = [matrix(i, triangle(0.8, 0.5), sender=f"s{i}", receiver=f"r{i}") for i in range(4)]
    assert not Crossed(ByDepth("difference")).estimate({"trials": pd.concat(circle)}).decides
    assert ByDepth("difference").estimate({"trials": pd.concat(circle)}).decides


@pytest.mark.parametrize(("senders", "receivers"), [(2, 3), (3, 2)])
def test_two_networks_in_a_role_are_too_few_for_an_interval(senders: int, receivers: int) -> None:
    pairs = [
        matrix(i, triangle(0.8 + i / 100, 0.5), sender=f"s{i % senders}", receiver=f"r{i // senders}")
        for i in range(senders * receivers)
    ]
    assert not Crossed(ByDepth("difference")).estimate({"trials": pd.concat(pairs)}).decides


def test_the_roles_of_unlike_numbers_each_have_their_own_freedom() -> None:
    """Three senders that differ and four receivers that do not: the interval is the senders' own, of two degrees."""
    sends = [0.0, 3.0, 9.0]
    pairs = [
        matrix(i, triangle(0.5 + sends[i % 3] / 100, 0.4), sender=f"s{i % 3}", receiver=f"r{i // 3}") for i in range(12)
    ]
    figure = Crossed(ByDepth("difference")).estimate({"trials": pd.concat(pairs)})
    assert figure.high - figure.value == pytest.approx(4.303 * math.sqrt(np.var(sends, ddof=1) / 3), rel=0.001)


def test_two_directions_of_one_shape_are_one_unit() -> None:
    rows = [
        matrix(i, triangle(0.5 + i / 100, 0.4), sender=f"s{i // 2}", receiver=f"another s{i // 2}") for i in range(6)
    ]
    found = PerSender(ByDepth("difference"))
    assert found.read({"trials": pd.concat(rows)}).to_list() == pytest.approx([10.5, 12.5, 14.5])
    assert found.estimate({"trials": pd.concat(rows)}).seeds == 3


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
    assert figure.seeds == 8


def test_a_contrast_of_few_units_has_no_interval() -> None:
    rows = [matrix(unit, triangle(0.8, 0.5)) for unit in range(FEWEST - 1)]
    rows += [matrix(9 + unit, triangle(0.6, 0.5), receiver="resnet34") for unit in range(FEWEST)]
    tables = {"trials": pd.concat(rows)}
    contrast = Contrast(*(ByDepth("difference", Where(receiver=name)) for name in ("another *", "resnet34")))
    assert contrast.estimate(tables).value == pytest.approx(20)
    assert not contrast.estimate(tables).decides


def test_two_matrices_of_one_unit_are_refused() -> None:
    rows = pd.concat([matrix(0, triangle(0.8, 0.5)), matrix(0, triangle(0.8, 0.5), receiver="resnet34")])
    with pytest.raises(DataError, match="pair 0 has several matrices"):
        ByDepth("difference").read({"trials": rows})


def test_above_leaves_the_inside_out_of_the_others() -> None:
    rows = matrix(0, lambda sender, receiver: sender * receiver, THIRDS)
    inside = Where(sender_depth=(1.0, 1.0), receiver_depth=(1.0, 1.0))
    others = [a * b for a, b in product(THIRDS, repeat=2)][:-1]
    found = Above("stitched", inside, Where()).read({"trials": rows})
    assert found.loc[0] == pytest.approx(100 * (1 - sum(others) / 8))


# --- the plans --------------------------------------------------------------------------------------------------------


def networks(part: Deferred) -> list[Network]:
    """Untrained networks in place of a part's, the same whenever they are asked for."""
    made = []
    for base in part.bases:
        assert isinstance(base, BaseModel)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(base.seed)
            built = resolve(base.source)
        made.append(
            Network(built.model, example=base.samples.example, name=base.name, preprocess=built.preprocess, copy=False)
        )
    return made


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


def test_every_block_meets_every_block_without_a_batchnorm() -> None:
    trials = [t for t in planned("hernandez-2", Scale(SMALL, stand_in)) if str(t.fit) == "Converged()"]
    sender, receiver = (trials[0].sender.name, trials[0].receiver.name)
    assert (sender, receiver) == ("resnet18", "resnet(1,1,1,1)")
    assert len({(t.sender_cut, t.receiver_cut) for t in trials}) == len(trials) == 8 * 4
    families = {type(t.family): t.family for t in trials}
    assert set(families) == {Conv, StridedConv, UpsampledConv}
    assert not any(family.batchnorm for family in families.values())  # type: ignore[attr-defined]


def test_the_published_fit_joins_the_ends_of_stages_of_a_circle_of_shapes() -> None:
    scale = Scale(SMALL, stand_in)
    published = []
    for part in study("hernandez-2").plan(scale):
        assert isinstance(part, Deferred)
        trials = [t for t in part.make(*networks(part)) if str(t.fit) != "Converged()"]
        if trials:
            published.append((trials[0].sender.name, trials[0].receiver.name))
            assert len(trials) == 16
    senders, receivers = zip(*published, strict=True)
    assert len(published) == len(set(senders)) == 4
    assert set(senders) == set(receivers)


def test_untrained_networks_take_the_place_of_every_trained_one() -> None:
    for role in ("both", "receiver", "sender"):
        trials = planned(f"hernandez-random-{role}", scale_named("tiny"))
        assert {trial.control for trial in trials} == {f"untrained {role}"}


def test_equal_shapes_come_beside_the_very_trials_of_unequal_ones() -> None:
    scale = scale_named("tiny")
    first = {t.key for t in planned("hernandez-2", scale) if str(t.fit) == str(scale.fit)}
    assert {t.key for t in planned("hernandez-2d", scale)} == first
