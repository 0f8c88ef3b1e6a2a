"""Features carried through a stitch: planted ones come back, independent ones do not, and others' code agrees."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy.stats import pearsonr
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

import suture
from loops import each
from models import LENGTH, VOCABULARY, WIDTH, Text
from suture import Measurement, features, fits, stitches, tasks
from suture.common.errors import DataError, FoldError, ShapeError
from suture.measurement.features import COLUMNS


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


ROTATION = torch.linalg.qr(drawn(WIDTH, WIDTH, seed=0))[0]
#: Of the original: 9 latents, of which the first reads what the second writes, and so on.
SPARSE = {
    "W_enc": drawn(WIDTH, 9, seed=5),
    "b_enc": 0.3 * drawn(9, seed=6),
    "W_dec": drawn(9, WIDTH, seed=7),
    "b_dec": 0.2 * drawn(WIDTH, seed=8),
}


@cache
def turned() -> Measurement:
    """The closed form from a network to its rotated copy, with controls."""
    texts = torch.randint(VOCABULARY, (150, LENGTH), generator=torch.Generator().manual_seed(1))
    data = suture.load_data(((texts[:90], None), (texts[90:], None)), name="ids", task=tasks.NextToken())
    a, b = (suture.Network(Text(q), example=data.example, name=name) for name, q in (("A", None), ("turned", ROTATION)))
    controls = "shuffled-pairs,untrained-sender,untrained-receiver"
    return suture.stitch(a, b, at="body", data=data, fit=fits.LeastSquares(), controls=controls)


def rotated() -> dict[str, Tensor]:
    """The same autoencoder, of the copy: what is read and written is turned as the copy is."""
    return {
        "W_enc": ROTATION @ SPARSE["W_enc"],
        "b_enc": SPARSE["b_enc"],
        "W_dec": SPARSE["W_dec"] @ ROTATION.T,
        "b_dec": SPARSE["b_dec"] @ ROTATION.T,
    }


# --- carrying ---------------------------------------------------------------------------------------------------------


def test_features_known_by_construction_are_carried_both_ways() -> None:
    stitched = turned().stitched
    assert stitched is not None
    one, other = features.sparse(**SPARSE), features.sparse(**rotated())
    x, z = drawn(20, LENGTH, WIDTH, seed=2), drawn(20, 9, seed=3).relu()
    for found, wanted, back in ((one, other, False), (other, one, True)):
        carried = features.carry(found, stitched, back=back)
        seen = x.double() @ ROTATION.T.double() if not back else x.double()
        close = {"rtol": 0, "atol": 1e-4, "check_dtype": False}
        torch.testing.assert_close(carried.encode(seen), wanted.encode(seen), **close)
        torch.testing.assert_close(carried.decode(z), wanted.decode(z), **close)
        torch.testing.assert_close(carried.vectors, wanted.vectors, **close)
        assert carried.width == WIDTH
        assert len(carried.names) == 9


def test_directions_are_carried_as_the_stitched_network_carries_them() -> None:
    stitched = turned().stitched
    assert stitched is not None
    vectors = drawn(3, WIDTH, seed=4)
    carried = features.carry(features.directions(vectors, names=("a", "b", "c")), stitched)
    torch.testing.assert_close(carried.vectors, stitched.carry(vectors), rtol=0, atol=1e-6, check_dtype=False)
    probe = features.directions(vectors[0], shift=2.0)
    assert probe.encode(torch.ones(4, WIDTH)).flatten().tolist() == pytest.approx([float(vectors[0].sum() + 2)] * 4)
    assert carried.names == ("a", "b", "c")
    row = torch.linalg.lstsq(stitched.stitch.weight.double(), torch.eye(WIDTH).double()).solution.T  # type: ignore[union-attr]
    read = (drawn(5, WIDTH, seed=9).double() - stitched.stitch.bias.double()) @ row @ vectors.T.double()  # type: ignore[union-attr]
    torch.testing.assert_close(carried.encode(drawn(5, WIDTH, seed=9)).double(), read, rtol=1e-4, atol=1e-4)


def test_a_stitch_that_bends_carries_none_and_its_reason_is_said() -> None:
    measured = turned()
    assert measured.stitched is not None
    seam = measured.stitched.seam
    bent = suture.Stitched(seam, stitches.TwoLayer().build((LENGTH, WIDTH), (LENGTH, WIDTH)))
    with pytest.raises(FoldError, match="nonlinearity"):
        features.carry(features.sparse(**SPARSE), bent)


# --- transfer ---------------------------------------------------------------------------------------------------------


def test_a_rotated_copy_tells_all_that_its_original_tells_and_controls_do_not() -> None:
    found = features.transfer(features.sparse(**rotated()), turned(), permutations=99)
    assert {name: str(dtype) for name, dtype in found.dtypes.items()} == COLUMNS
    assert set(found["control"]) == {"", "shuffled pairs", "untrained sender"}
    own = found[(found["control"] == "") & (found["active"] > 0) & (found["active"] < 1)]
    assert len(own) >= 10
    np.testing.assert_allclose(own["value"], 1, atol=1e-4)
    assert (own["p"] == 0.01).all()
    assert (own[own["measure"] == "correlation"]["low"] > 0.9999).all()
    assert (own["low"] > 0.5).all()  # of an AUROC it depends on how often the feature is active
    shuffled = found[(found["control"] == "shuffled pairs") & (found["measure"] == "correlation")].dropna()
    assert shuffled["value"].abs().mean() < 0.5  # a map of noise still sends some of each direction


def test_it_reads_through_stitches_that_bend_and_maps_by_channel() -> None:
    class Maps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.conv, self.head = nn.Conv2d(1, 4, 3, stride=2), nn.Linear(4, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.conv(x).relu().mean((2, 3)))

    data = suture.load_data("digits").limited(fit=60, score=40)
    a, b = (suture.Network(Maps(), example=data.example, name=name) for name in "AB")
    fit, family = fits.LeastSquares(), stitches.TwoLayer()
    measured = suture.stitch(a, b, at="conv", data=data, fit=fit, stitch=family, controls="itself")
    dictionary = features.directions(drawn(2, 4, seed=0))
    found = features.transfer(dictionary, measured, samples=30, permutations=19)
    assert set(found["control"]) == {"", "itself"}
    assert set(found["n"]) == {30}
    np.testing.assert_allclose(found["value"], 1, atol=1e-3)
    held = data.score.first(30)
    seen = features.latents(dictionary, b, "conv", held)
    assert seen.shape == (30, 2, *b.cuts.find("conv").shape[1:])
    raw = b.upto("conv")(held.images)
    torch.testing.assert_close(seen[:, 1], torch.einsum("nchw,c->nhw", raw, drawn(2, 4, seed=0)[1]))


def test_latents_are_compared_beside_what_they_were_read_from() -> None:
    measured = turned()
    a, b = measured.trial.sender, measured.trial.receiver
    assert isinstance(a, suture.Network)
    of = measured.trial.score_data
    one, other = (
        features.latents(features.sparse(**held), network, "body", of)
        for held, network in ((SPARSE, a), (rotated(), b))
    )
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    table = suture.compare({"latents": one}, {"latents": other, "permuted": other[..., order]}, permutations=19)
    np.testing.assert_allclose(table["value"], 1, atol=1e-4)


def test_values_are_those_of_scipy_and_scikit_learn() -> None:
    random = np.random.default_rng(0)
    own = np.maximum(random.normal(size=(40, 3, 4)), 0)
    carried = np.round(own + random.normal(size=own.shape), 1)  # with ties
    signed = random.normal(size=(40, 4))
    for told, sent in ((own, carried), (signed, np.round(signed + random.normal(size=signed.shape), 1))):
        found = features.tells(told, sent, permutations=19).set_index(["measure", "feature"])
        flat, given = told.reshape(-1, 4), sent.reshape(-1, 4)
        for i in range(4):
            active = flat[:, i] > (0 if told is own else np.median(flat[:, i]))
            auroc, r = found.loc[("auroc", str(i))], found.loc[("correlation", str(i))]
            assert auroc["value"] == pytest.approx(roc_auc_score(active, given[:, i]), abs=1e-12)
            assert r["value"] == pytest.approx(pearsonr(flat[:, i], given[:, i]).statistic, abs=1e-12)
            assert auroc["active"] == active.mean()


def test_intervals_are_fishers_and_delongs_where_images_have_one_position() -> None:
    """Both are first-order, so they agree for normal values and many images."""
    random = np.random.default_rng(1)
    own = random.normal(size=(2000, 1))
    carried = 0.6 * own + 0.8 * random.normal(size=own.shape)
    found = features.tells(own, carried, permutations=19).set_index("measure")
    r = found.loc["correlation"]
    fisher = np.tanh(np.arctanh(r["value"]) + np.array([-1, 1]) * 1.96 / np.sqrt(1997))
    np.testing.assert_allclose([r["low"], r["high"]], fisher, atol=3e-3)
    auroc = found.loc["auroc"]
    active = own[:, 0] > np.median(own)
    x, y = carried[active, 0], carried[~active, 0]
    v10 = np.array([(value > y).mean() for value in x])
    v01 = np.array([(x > value).mean() for value in y])
    error = np.sqrt(v10.var(ddof=1) / len(x) + v01.var(ddof=1) / len(y))  # DeLong 1988
    spread = auroc["value"] * (1 - auroc["value"])
    odds = np.log(auroc["value"] / (1 - auroc["value"])) + np.array([-1, 1]) * 1.96 * error / spread
    np.testing.assert_allclose([auroc["low"], auroc["high"]], 1 / (1 + np.exp(-odds)), atol=1e-3)


def count_alarms(pairs: int) -> dict[str, int]:
    """Of pairs of eight features, at three positions that resemble one another, those of which any has p ≤ 0.05."""
    random = np.random.default_rng(2)
    alarms = {"correlation": 0, "auroc": 0}
    for _ in range(pairs):
        own, carried = (random.normal(size=(16, 1, 8)) + random.normal(size=(16, 3, 8)) for _ in range(2))
        found = features.tells(np.maximum(own, 0), carried + np.arange(3)[:, None], permutations=19)
        for measure, rows in found.groupby("measure"):
            alarms[str(measure)] += bool((rows["p"] <= 0.05).any())
    return alarms


def test_false_alarms_are_about_five_in_a_hundred_independent_pairs() -> None:
    assert all(0 < count <= 13 for count in count_alarms(100).values())  # 99.9 % of a binomial of 100 at 5 %


@pytest.mark.slow
def test_false_alarms_are_at_most_five_in_a_hundred_of_a_thousand_independent_pairs() -> None:
    alarms = count_alarms(1000)
    print(alarms)
    assert all(30 < count <= 73 for count in alarms.values())  # 99.9 % of a binomial of 1,000 at 5 %


def test_intervals_cover_what_they_promise() -> None:
    random = np.random.default_rng(3)
    covered = np.zeros(2)
    truth = {"correlation": 0.6, "auroc": None}
    large = random.normal(size=400_000)
    sent = 0.6 * large + 0.8 * random.normal(size=large.shape)
    truth["auroc"] = roc_auc_score(large > 0, sent)
    for _ in range(20):
        own = random.normal(size=(60, 20))
        carried = 0.6 * own + 0.8 * random.normal(size=own.shape)
        for i, (measure, rows) in enumerate(features.tells(own, carried, permutations=19).groupby("measure")):
            covered[i] += ((rows["low"] <= truth[str(measure)]) & (rows["high"] >= truth[str(measure)])).sum()
    assert (covered / 400 > 0.92).all(), covered


def test_features_that_do_not_vary_are_left_empty() -> None:
    random = np.random.default_rng(4)
    own, carried = np.maximum(random.normal(size=(20, 3)), 0), random.normal(size=(20, 3))
    own[:, 0], carried[:, 1] = 0, 0.1
    found = features.tells(own, carried, permutations=19).set_index(["measure", "feature"])
    assert found.loc[("correlation", "0")][["value", "low", "high", "p"]].isna().all()
    assert found.loc[("correlation", "1")][["value", "p"]].isna().all()
    assert found.loc[("auroc", "0")][["value", "low", "high", "p"]].isna().all()
    assert found.loc[("auroc", "1")]["value"] == 0.5
    assert found.loc[("correlation", "2")].notna().all()


# --- dictionaries -----------------------------------------------------------------------------------------------------


def test_autoencoders_by_the_fields_names(tmp_path: Path) -> None:
    save_file({name: value.contiguous() for name, value in SPARSE.items()}, tmp_path / "sae.safetensors")
    found, x = features.load(tmp_path / "sae.safetensors"), drawn(30, WIDTH, seed=2)
    hidden = ((x - SPARSE["b_dec"]) @ SPARSE["W_enc"] + SPARSE["b_enc"]).clamp(min=0)
    torch.testing.assert_close(found.encode(x), hidden)
    torch.testing.assert_close(found.decode(hidden), hidden @ SPARSE["W_dec"] + SPARSE["b_dec"])
    torch.testing.assert_close(found.vectors, SPARSE["W_dec"], check_dtype=False)
    few = features.load(tmp_path / "sae.safetensors", k=2).encode(x)
    assert ((few > 0).sum(1) <= 2).all()
    assert torch.equal(few.max(1).values, hidden.max(1).values)
    plain = features.load(tmp_path / "sae.safetensors", centred=False).encode(x)
    torch.testing.assert_close(plain, (x @ SPARSE["W_enc"] + SPARSE["b_enc"]).relu())
    save_file({**SPARSE, "threshold": torch.ones(9)}, tmp_path / "jump.safetensors")
    with pytest.raises(DataError, match="also holds threshold, so it is not an autoencoder with only a ReLU"):
        features.load(tmp_path / "jump.safetensors")
    save_file({"W_enc": SPARSE["W_enc"]}, tmp_path / "half.safetensors")
    with pytest.raises(DataError, match="has no b_enc, W_dec, b_dec; it has W_enc"):
        features.load(tmp_path / "half.safetensors")


@each("dtype", [torch.float16, torch.bfloat16])
def test_autoencoders_in_sixteen_bits_are_computed_in_thirty_two(dtype: torch.dtype, tmp_path: Path) -> None:
    rounded = {name: value.to(dtype).contiguous() for name, value in SPARSE.items()}
    save_file(rounded, tmp_path / f"{dtype}.safetensors")
    found, x = features.load(tmp_path / f"{dtype}.safetensors"), drawn(30, WIDTH, seed=2)
    exact = features.sparse(**{name: value.double() for name, value in rounded.items()})
    torch.testing.assert_close(found.encode(x), exact.encode(x.double()).float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.vectors, rounded["W_dec"].float(), check_dtype=False)


def test_any_module_that_encodes_and_decodes() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inward, self.outward = nn.Linear(WIDTH, 4), nn.Linear(4, WIDTH)

        def encode(self, x: Tensor) -> Tensor:
            return self.inward(x).relu()

        def decode(self, z: Tensor) -> Tensor:
            return self.outward(z)

    made = Own()
    found = features.module(made, WIDTH, names="abcd")
    assert (found.width, found.names) == (WIDTH, ("a", "b", "c", "d"))
    torch.testing.assert_close(found.vectors, made.outward.weight.T, check_dtype=False)
    with pytest.raises(DataError, match="Linear has no method encode"):
        features.module(nn.Linear(2, 2), 2)
    with pytest.raises(DataError, match=r"Own\.encode does not take rows of 5 features"):
        features.module(made, 5)


@each(
    ("make", "error", "said"),
    [
        (lambda: features.directions(np.ones((2, 3)), shift=[1.0]), DataError, r"vectors are \(2, 3\) and shifts"),
        (lambda: features.directions([[np.nan, 1.0]]), DataError, "vectors is not finite"),
        (lambda: features.directions(np.ones((2, 3)), names=("a", "a")), DataError, "2 names for 2 features"),
        (lambda: features.sparse(**{**SPARSE, "W_dec": SPARSE["W_dec"].T}), DataError, "do not fit together"),
        (lambda: features.sparse(**SPARSE, k=10), DataError, "k=10: give a number of latents from 1 to 9"),
        (lambda: features.tells(np.ones((5, 2)), np.ones((5, 3))), DataError, r"own values are \(5, 1, 2\)"),
        (lambda: features.tells(np.ones((2, 2)), np.ones((2, 2))), DataError, "the same 3 images or more"),
        (lambda: features.tells(np.full((5, 2), np.inf), np.ones((5, 2))), DataError, "not finite everywhere"),
        (
            lambda: features.transfer(features.directions(np.ones(5)), turned()),
            ShapeError,
            "reads 5 features, and turn",
        ),
        (lambda: features.transfer(features.directions(np.ones(6)), "x"), DataError, "measured='x' is a str"),
        (lambda: features.carry(features.directions(np.ones(5)), turned().stitched), ShapeError, "reads 5 features"),
        (
            lambda: features.carry(features.directions(np.ones(5)), turned()),
            DataError,
            "stitched is a Measurement; give a stitched network",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make, error, said) -> None:
    with pytest.raises(error, match=said):
        make()
