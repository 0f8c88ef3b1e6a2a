"""oxford2025: its claims on planted tables, whose figures are known by hand, and the code that is its own."""

from collections.abc import Iterable, Sequence

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loops import examples
from suture import Network
from suture.common.errors import DataError
from suture.core.stitches import Conv, ConvLinear
from suture.zoo.models import resolve
from suture.zoo.sources import parse_source
from suture_papers.base.cells import COMPLEXITIES, TRIALS, Where
from suture_papers.base.claims import Claim
from suture_papers.base.quantities import FirstStep, Mean, Peak, Ratio, Step
from suture_papers.base.scale import scale_named, stand_in
from suture_papers.base.study import Deferred
from suture_papers.complexity import GradientNorm
from suture_papers.networks.base_model import BaseModel
from suture_papers.oxford2025 import STUDIES, claims, plans, simplicity, specialists
from suture_papers.oxford2025.claims import ALTERED, NARROW, ON_CARS, ON_TRUCKS, PAIRED, TRUE
from suture_papers.oxford2025.plans import BATCHES, COMPLEX, DIGITS, OTHERS, PICTURES, SIMPLE

LINE = ("pool1", "pool2", "fc1_relu", "fc2_relu", "fc3_relu")
NAMES = {TRUE: "cifar10/fit[:9]", ALTERED: "cifar10 automobile as cat/fit[:9]", PAIRED: "mnist+cifar10/fit[:9]"}
SEEDS = range(10)


@pytest.fixture(autouse=True)
def _decided_on_one_stitch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let planted figures decide however near they are to their thresholds, which test_claims is about."""
    monkeypatch.setattr("suture_papers.base.claims.NEAR", 0.0)


def trials(values: Sequence[float], cuts: Sequence[str] = LINE, **columns: object) -> pd.DataFrame:
    """Rows of some cuts, of fractions, the same for ten networks but for half a thousandth."""
    fixed: dict[str, object] = {
        "status": "ok",
        "score": "accuracy",
        "unit": "fraction",
        "published": False,
        "control": "",
    }
    fixed |= {
        "fit_data": NAMES[TRUE],
        "score_data": "cifar10/score",
        "sender": "A",
        "receiver": "B",
        "fit": "Converged()",
    }
    fixed |= {"n": 1000, "sender_score": 0.4, "receiver_score": 0.4, "stitch": "Linear()"} | columns
    rows = [
        fixed
        | {"network_seed": seed, "sender_cut": cut, "receiver_cut": cut, "stitched": value + seed / 2250}
        | {"sender_depth": (place + 1) / len(cuts), "receiver_depth": (place + 1) / len(cuts)}
        for seed in SEEDS
        for place, (cut, value) in enumerate(zip(cuts, values, strict=True))
    ]
    return pd.DataFrame(rows)


def decided(made: Iterable[Claim], *tables: pd.DataFrame, kind: str = TRIALS) -> dict[str, tuple[str, float]]:
    """What was decided of claims with a threshold: verdict and figure, by statement."""
    together = {kind: pd.concat(tables, ignore_index=True)}
    found = [claim.decide(together) for claim in made if claim.threshold is not None]
    return {one.claim.statement: (one.verdict, one.figure.value if one.figure else float("nan")) for one in found}


def verdicts(made: Iterable[Claim], *tables: pd.DataFrame, kind: str = TRIALS) -> list[str]:
    return [verdict for verdict, _ in decided(made, *tables, kind=kind).values()]


# --- steps ------------------------------------------------------------------------------------------------------------


def test_the_step_to_a_cut_is_its_share_of_the_largest_value() -> None:
    tables = {TRIALS: trials([0.0, 0.0, 0.1, 0.5, 0.4])}
    shares = {cut: Step("stitched", cut=cut).read(tables)[0] for cut in LINE}
    assert shares == pytest.approx({"pool1": 0, "pool2": 0, "fc1_relu": 0.2, "fc2_relu": 0.8, "fc3_relu": -0.2})


def test_of_nothing_no_step_makes_a_share() -> None:
    assert Step("stitched", cut="pool2").read({TRIALS: trials([0.0] * 5)})[0] == 0


def test_a_step_to_a_cut_that_was_not_measured_is_refused() -> None:
    with pytest.raises(DataError, match="no cut 'fc9' among pool1, pool2"):
        Step("stitched", cut="fc9").read({TRIALS: trials([0.1] * 5)})


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.floats(0.01, 1), min_size=5, max_size=5))
def test_all_steps_together_make_the_last_value(values: list[float]) -> None:
    tables = {TRIALS: trials(values)}
    steps = sum(Step("stitched", cut=cut).read(tables)[0] for cut in LINE)
    assert steps == pytest.approx(values[-1] / max(values))


def test_depth_and_not_the_order_of_rows_orders_cuts() -> None:
    rows = trials([0.0, 0.0, 0.1, 0.5, 0.4]).iloc[::-1]
    assert Step("stitched", cut="fc2_relu").read({TRIALS: rows})[0] == pytest.approx(0.8)


@pytest.mark.parametrize(("values", "peak"), [([1, 3, 2, 1.5], 2.0), ([4, 3, 2, 1], 0.75), ([1, 2, 3, 6], 0.5)])
def test_a_peak_is_inside_over_the_larger_end(values: list[float], peak: float) -> None:
    tables = {TRIALS: trials(values, LINE[:4])}
    assert Peak("stitched").read(tables)[0] == pytest.approx(peak)
    inside = max(values[1:-1]) - max(values[0], values[-1])
    assert Peak("stitched", signed=True).read(tables)[0] == pytest.approx(100 * inside)


def test_what_may_be_negative_has_a_peak_by_difference() -> None:
    tables = {TRIALS: trials([-3.0, 1.0, 0.0, -2.0], LINE[:4])}
    assert Peak("stitched", signed=True).read(tables)[0] == pytest.approx(300)
    with pytest.raises(DataError, match="larger end is -200"):
        Peak("stitched").read(tables)


@pytest.mark.parametrize(("values", "first"), [([9, 4, 2, 1], 3 / 8), ([9, 8, 2, 1], -5 / 8), ([1, 4, 2, 1], 1 / 3)])
def test_the_first_step_is_compared_with_the_largest_other(values: list[float], first: float) -> None:
    tables = {TRIALS: trials(values, LINE[:4])}
    assert FirstStep("stitched").read(tables)[0] == pytest.approx(first)


@pytest.mark.parametrize("quantity", [Peak("stitched"), FirstStep("stitched")])
def test_two_cuts_have_neither_peak_nor_several_steps(quantity: Peak | FirstStep) -> None:
    with pytest.raises(DataError, match="2 cuts"):
        quantity.read({TRIALS: trials([0.1, 0.2], LINE[:2])})


def test_a_share_of_nothing_is_none() -> None:
    tables = {TRIALS: trials([0.3] * 5, receiver_score=0.6)}
    assert Ratio(Mean("stitched"), Mean("receiver_score"), share=True).read(tables)[0] == pytest.approx(0.5)
    tables = {TRIALS: trials([0.3] * 5, receiver_score=0.0)}
    assert Ratio(Mean("stitched"), Mean("receiver_score"), share=True).read(tables)[0] == 0


def test_a_share_of_what_was_not_measured_is_missing() -> None:
    table = pd.concat(
        trials([0.3] * 5, receiver_score=0.6).assign(network_seed=seed, receiver=name) for seed, name in enumerate("AB")
    )
    shares = Ratio(Mean("stitched"), Mean("receiver_score", Where(receiver="A")), share=True).read({TRIALS: table})
    assert shares.notna().tolist() == [True, False]


# --- claims -----------------------------------------------------------------------------------------------------------

MLP = ("mlp", "mlp cars as cats")


def cars(clean: float, blind: float, others: float = 0.52, labels: str = ALTERED, cut: str = "flatten") -> pd.DataFrame:
    """Cars of the clean sender and of the relabelled one; parents have 0.6 and 0.55 of the others."""
    made = []
    for sender, receiver, value in ((*MLP, clean), (*MLP[::-1], blind)):
        ends = {"sender": sender, "receiver": receiver, "fit_data": NAMES[labels]}
        made.append(trials([value], [cut], score=ON_CARS, receiver_score=0.7, **ends))
        made.append(trials([others], [cut], score=OTHERS, **ends | {"sender_score": 0.6, "receiver_score": 0.55}))
    return pd.concat(made)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (cars(0.02, 0.01), ["reproduced"] * 4),
        (cars(0.02, 0.3), ["reproduced", "reproduced", "not reproduced", "reproduced"]),
        (cars(0.02, 0.01, others=0.45), ["reproduced", "not reproduced"] * 2),
        (cars(0.048, 0.01), ["undecided", *["reproduced"] * 3]),
    ],
)
def test_cars_are_not_known_either_way_by_either_labels(table: pd.DataFrame, said: list[str]) -> None:
    made = claims.claim_inherited("mlp", recovered=False)
    worst = ["not reproduced"] * 4
    assert verdicts(made, table, cars(0.9, 0.9, 0.1, labels=TRUE)) == said + worst


@pytest.mark.parametrize(("blind", "said"), [(0.4, "reproduced"), (0.3, "not reproduced"), (0.348, "undecided")])
def test_cars_come_back_where_half_of_the_receivers_do(blind: float, said: str) -> None:
    made = claims.claim_inherited("mlp", recovered=True, cut="flatten")
    assert verdicts(made, cars(0.01, blind, labels=TRUE), cars(0.9, 0.0, labels=TRUE, cut="pool2")) == [
        *["not measured"] * 2,
        "reproduced",
        said,
    ]


@pytest.mark.parametrize(
    ("altered", "true", "said"),
    [
        ((0.02, 0.01, 0.4), (0.3, 0.3, 0.4), "reproduced"),  # altered labels make both true
        ((0.02, 0.01, 0.0), (0.3, 0.3, 0.4), "not reproduced"),  # each set makes one of them true
        ((0.02, 0.01, 0.0), (0.0, 0.0, 0.4), "reproduced"),
    ],
)
def test_one_set_of_labels_must_make_both_statements_true(
    altered: tuple[float, ...], true: tuple[float, ...], said: str
) -> None:
    """Cars of the MLP either way, and of the CNN that is to regain them; the other way round it names none."""
    made = []
    for labels, (clean, blind, regained) in ((ALTERED, altered), (TRUE, true)):
        cnns = cars(0.0, regained, labels=labels).replace({"mlp": "cnn", "mlp cars as cats": "cnn cars as cats"})
        made += [cars(clean, blind, labels=labels, cut="block5.relu"), cnns]
    assert verdicts([claims.claim_one_set()], *made) == [said]


def trucks(values: Sequence[float], sender: str = "cnn trucks in fc2") -> pd.DataFrame:
    return trials(values, score=ON_TRUCKS, sender=sender)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([0.01, 0.02, 0.01, 0.3, 0.28], ["reproduced"] * 3),
        ([0.01, 0.02, 0.2, 0.3, 0.28], ["not reproduced", "reproduced", "not reproduced"]),
        ([0.01, 0.02, 0.01, 0.3, 0.05], ["reproduced", "not reproduced", "reproduced"]),
        ([0.01, 0.02, 0.01, 0.02, 0.3], ["reproduced", "not reproduced", "not reproduced"]),
    ],
)
def test_trucks_jump_behind_their_layer(values: list[float], said: list[str]) -> None:
    beside = trials([0.9], ["flatten"], score=ON_TRUCKS, sender="cnn trucks in fc2")
    assert verdicts(claims.claim_located("fc2", "2b"), trucks(values), beside) == said


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([0.0, 0.1, 0.2, 0.3, 0.4], ["reproduced", "reproduced"]),
        ([0.1, 0.0, 0.2, 0.3, 0.4], ["reproduced", "reproduced"]),
        ([0.0, 0.01, 0.02, 0.03, 0.4], ["reproduced", "not reproduced"]),
        ([0.4, 0.3, 0.2, 0.1, 0.05], ["not reproduced", "reproduced"]),
    ],
)
def test_trucks_rise_with_the_senders_layers_by_no_single_step(values: list[float], said: list[str]) -> None:
    assert verdicts(claims.claim_steadily(), trucks(values, "cnn")) == said


def sided(side: str, values: Sequence[float], wide: float) -> pd.DataFrame:
    shared = {"sender": DIGITS, "receiver": PICTURES, "fit_data": NAMES[PAIRED]}
    shared["score_data"] = f"mnist+cifar10 with {side} blacked out/score"
    high = trials([wide], ["flatten"], **shared).assign(sender_cut="pool2")
    return pd.concat([trials(values, LINE[:4], **shared), high])


def test_sides_go_opposite_ways_and_the_wide_stitch_lifts_both() -> None:
    up, down = [0.1, 0.2, 0.5, 0.9], [0.5, 0.4, 0.3, 0.1]
    tables = sided("cifar10", up, 0.8), sided("mnist", down, 0.42)
    assert verdicts(claims.claim_opposite(), *tables) == ["reproduced"] * 4
    tables = sided("cifar10", down, 0.8), sided("mnist", down, 0.3)
    assert verdicts(claims.claim_opposite(), *tables) == [
        "not reproduced",
        "reproduced",
        "reproduced",
        "not reproduced",
    ]


def test_the_four_accuracies_of_robustness_are_read_apart() -> None:
    both = trials([0.98], ["flatten"], sender=DIGITS, fit_data=NAMES[PAIRED], score_data="mnist+cifar10/score")
    tables = {TRIALS: pd.concat([both, sided("cifar10", [0.1] * 4, 0.82), sided("mnist", [0.1] * 4, 0.42)])}
    found = [claim.decide(tables) for claim in claims.claim_robust()]
    assert [round(one.figure.value, 1) for one in found[:3] if one.figure] == [98.2, 82.2, 42.2]
    assert {one.verdict for one in found} == {"reported", "not measured"}


def test_untrained_networks_must_stay_at_chance() -> None:
    control = {"control": "untrained both", "fit_data": NAMES[TRUE], "sender": "untrained cnn"}
    at = trials([0.1, 0.1, 0.1, 0.1, 0.3], score=ON_CARS, **control)
    more = trials([0.1, 0.1, 0.1, 0.1, 0.15], score=ON_TRUCKS, **control)
    every = trials([0.1, 0.1, 0.1, 0.1, 0.4], **control)
    assert verdicts(claims.claim_controlled(), at, more, every) == [
        "not measured",
        "not reproduced",
        "reproduced",
        *["not measured"] * 2,
    ]


def test_a_network_that_calls_everything_a_car_has_learned_nothing_of_cars() -> None:
    control = {"control": "untrained both", "fit_data": NAMES[TRUE], "sender": "untrained cnn"}
    cars = trials([1.0, 0.0, 0.1, 0.1, 0.1], score=ON_CARS, **control)
    every = trials([0.1, 0.1, 0.12, 0.1, 0.1], **control)
    found = decided(claims.claim_controlled(), cars, every)
    assert found[next(words for words in found if "cars, CNN" in words)] == ("reproduced", pytest.approx(10.2))


def complexity(values: Sequence[float], cuts: Sequence[str], measure: str, sender: str, receiver: str) -> pd.DataFrame:
    rows = trials(values, cuts, sender=sender, receiver=receiver).rename(columns={"stitched": "value"})
    return rows.assign(measure=measure, unit="nats").drop(
        columns=["status", "score", "fit_data", "published", "stitch", "fit"]
    )


def test_complexity_falls_along_the_four_cuts_by_the_first_step() -> None:
    four = [f"layer{stage}.1" for stage in range(1, 5)]
    measures = {BATCHES: ([5, 2, 1.5, 1.6], 1), "mean sharpness": ([5, 4, 3, 2], 1), "gzip size": ([4, 3, 2, 1], 9)}
    tables = [complexity(values, four, measure, SIMPLE, COMPLEX) for measure, (values, _) in measures.items()]
    for measure, (_, simple) in measures.items():
        for name, own in ((SIMPLE, simple), (COMPLEX, 6)):
            alone = complexity([own], [""], measure, name, name)
            tables.append(alone.assign(sender_depth=float("nan"), receiver_depth=float("nan")))
    found = decided(simplicity.claim_simplified(), *tables, kind=COMPLEXITIES)
    # Of the gradient norm the last step rises; of the gzip size the simple network is not the simpler one.
    assert [verdict for verdict, _ in found.values()] == ["not reproduced", "reproduced", "not measured", "reproduced"]
    assert list(found.values())[-1][1] == pytest.approx(2.5 / 3.5)


def test_complexity_peaks_inside_the_line_without_the_wide_stitch() -> None:
    table = complexity([2, 3, 1, 1], LINE[:4], BATCHES, DIGITS, PICTURES)
    wide = complexity([9], ["flatten"], BATCHES, DIGITS, PICTURES).assign(sender_cut="pool2")
    found = [claim.decide({COMPLEXITIES: pd.concat([table, wide])}) for claim in simplicity.claim_dominated()]
    assert [round(one.figure.value, 1) for one in found if one.figure] == [1.5, 3.0]


# --- plans ------------------------------------------------------------------------------------------------------------


def test_every_row_of_the_paper_is_a_study() -> None:
    ids = "4.1-mlp 4.1-cnn 4.2 4.3a 4.3b 4.4-fig5 4.4-fig6 6.1 6.2 control alone"  # the last is a question to it
    assert [study.id for study in STUDIES] == [f"oxford-{name}" for name in ids.split()]


def test_both_sides_are_fitted_alike_and_scored_with_the_other_half_black() -> None:
    scale = scale_named("tiny")
    both, digits, pictures = plans.sides_of(scale)
    assert both.fit is digits.fit is pictures.fit
    height = both.fit.images.shape[3]
    assert not digits.score.images[:, :, height:].any()
    assert torch.equal(digits.score.images[:, :, :height], both.score.images[:, :, :height])
    assert not pictures.score.images[:, :, :height].any()
    assert torch.equal(pictures.score.images[:, :, height:], both.score.images[:, :, height:])


def made(base: object) -> Network:
    """The network of a base as it is before training."""
    assert isinstance(base, BaseModel)
    built = resolve(parse_source(base.source))
    example = base.samples.example
    return Network(built.model, example=example, name=base.name, preprocess=built.preprocess, factory=built.factory)


@pytest.mark.parametrize(("name", "published"), [("tiny", [2, 0]), ("small", [2, 0]), ("paper", [3, 3])])
def test_the_papers_recipe_takes_a_sample_of_the_first_pair_and_at_its_scale_all(
    name: str, published: list[int]
) -> None:
    scale = scale_named(name, stand_in)
    data, seams = scale.data("cifar10"), (*plans.MAPS, plans.DENSE)
    laters = plans.plan_seams(scale, "cnn", "cnn no trucks B", data, seams, sample=(1, 2))[:2]
    planned = [list(later.make(*map(made, later.bases))) for later in laters]
    assert [sum(trial.fit != scale.fit for trial in trials) for trials in planned] == published
    assert [sum(trial.fit == scale.fit for trial in trials) for trials in planned] == [3, 3]
    narrow, dense = planned[0][0], planned[0][-1]
    assert narrow.family == Conv(batchnorm=False)
    assert dense.family == ConvLinear()


def test_the_control_plans_untrained_networks_alone() -> None:
    later = plans.plan_controlled(scale_named("tiny"))[0]
    assert isinstance(later, Deferred)
    assert [trial.control for trial in later.make(*map(made, later.bases))] == ["untrained both"] * 2


def test_the_two_gradient_norms_have_two_names() -> None:
    spelled = [measure.settings for measure in (GradientNorm(), GradientNorm(batch=4))]
    rows = pd.DataFrame({"measure": ["gradient norm"] * 2, "settings": spelled})
    named = plans._name_batches(lambda stitched: rows, lambda trial: trial)
    assert list(named["measure"]) == ["gradient norm", BATCHES]


def test_combinations_are_labelled_by_what_their_halves_show() -> None:
    data = scale_named("tiny").whole("mnist+cifar10")
    made, side = specialists.Combinations()(data), data.fit.images.shape[3]
    uppers = data.fit.images[:, :, :side].flatten(1)
    for image, label in zip(made.fit.images, made.fit.labels, strict=True):
        same = (uppers == image[:, :side].flatten()).all(1)
        assert label // 10 in data.fit.labels[same]
    assert torch.equal(made.fit.labels % 10, data.fit.labels)
    assert torch.equal(made.fit.images[:, :, side:], data.fit.images[:, :, side:])
    assert made.classes[13] == f"1 & {data.classes[3]}"
    assert len(made.classes) == 100


def test_half_of_what_is_emphasised_is_of_its_classes() -> None:
    data = scale_named("tiny").whole("cifar10")
    made = specialists.Emphasised((1, 2), "two")(data)
    meant = torch.isin(made.fit.labels, torch.tensor([1, 2]))
    assert int(meant.sum()) == int(torch.isin(data.fit.labels, torch.tensor([1, 2])).sum()) == len(meant) // 2
    assert made.score is data.score


def test_the_marked_combination_is_the_commonest_of_the_test_images() -> None:
    data = specialists.Combinations()(scale_named("tiny").whole("mnist+cifar10"))
    counts = data.score.labels.bincount()
    assert counts[specialists.find_marked(data)] == counts.max()


def test_a_where_of_the_line_leaves_out_the_flattened_vector() -> None:
    table = pd.concat([trials([0.1] * 5), trials([0.9], ["flatten"])])
    assert set(Where(receiver_cut=NARROW).select({TRIALS: table})["receiver_cut"]) == set(LINE)
