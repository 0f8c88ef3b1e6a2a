"""Comparing arrays that a user brings: the same numbers as between networks, and as other libraries give."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import save_file

import suture
from loops import each
from measurement.indices.oracles import ORACLES
from suture import indices
from suture.common.errors import DataError, DeviceError, NetworkError
from suture.core.activations.cache import Activations
from suture.measurement.sides import read_arrays
from suture.measurement.tables.similarities import COLUMNS
from trained import few_digits, hybrids

random = np.random.default_rng(0)
X = random.normal(size=(60, 8))
Y = np.tanh(X @ random.normal(size=(8, 5))) + random.normal(size=(60, 5))
TOKENS = random.normal(size=(60, 6, 4))
UNEVEN = random.random((60, 6)) < 0.2  #: tokens that do not count
UNEVEN[:, 0] = False
ROTATION = np.linalg.qr(random.normal(size=(8, 8)))[0]
BY = [
    indices.LinearCKA(debiased=True),
    indices.linear_cka,
    indices.rsa_pearson,
    indices.rsa_spearman,
    indices.linear_regression,
    indices.mutual_knn,
    indices.procrustes_angle,
]


def test_three_lines_give_a_calibrated_number() -> None:
    found = suture.compare(X, Y)
    assert {name: str(dtype) for name, dtype in found.dtypes.items()} == COLUMNS
    (row,) = found.itertuples()
    assert (row.sender, row.receiver, row.sender_cut, row.receiver_cut, row.n) == ("x", "y", "x", "y", 60)
    assert row.low < row.calibrated < row.high
    assert row.calibrated == pytest.approx((row.value - row.chance) / (1 - row.chance))
    assert row.p <= 0.01
    assert "linear_cka(debiased=True), calibrated, of x and y" in found._repr_html_()


@each("index", BY)
def test_values_are_those_of_other_libraries(index: indices.Index) -> None:
    for x, y in ((X, Y), (torch.from_numpy(X), torch.from_numpy(Y).float())):
        found = suture.compare(x, y, by=index, permutations=0)
        assert found["value"].item() == pytest.approx(ORACLES[index.name](X, Y), abs=1e-4), index.name


@each("by", [indices.LinearCKA(debiased=True), indices.procrustes, indices.RSA(dissimilarity="euclidean")])
def test_a_rotated_copy_and_a_permuted_one_are_the_same(by: indices.Index) -> None:
    for copy in (X @ ROTATION, X[:, ::-1], 3 * X[:, random.permutation(8)] + 1):
        row = suture.compare(X, copy, by=by).iloc[0]
        assert row["value"] == pytest.approx(1, abs=1e-4)
        assert row["calibrated"] == pytest.approx(1, abs=1e-4)


def test_arrays_take_the_path_of_networks_bit_for_bit() -> None:
    a, b = hybrids()
    by = [indices.LinearCKA(debiased=True), indices.rbf_cka, indices.procrustes_angle]
    cuts = ["relu", "hidden"]
    for settings in ({}, {"samples_as": "mean"}):
        wanted = suture.compare(a, b, data=few_digits(), cuts=cuts, by=by, samples=60, permutations=19, **settings)
        held, cache = few_digits().limited(score=60).score, Activations()
        sides = [{cut: cache.at(network, cut, held) for cut in cuts} for network in (a, b)]
        found = suture.compare(*sides, by=by, permutations=19, names=("A", "B"), **settings)
        same = [name for name in COLUMNS if name not in ("score_data", "sender_depth", "receiver_depth")]
        pd.testing.assert_frame_equal(found[same], wanted[same], check_exact=True)
        arrays = [{cut: x.numpy() for cut, x in side.items()} for side in sides]
        again = suture.compare(*arrays, by=by, permutations=19, names=("A", "B"), **settings)
        pd.testing.assert_frame_equal(again, found, check_exact=True)


def test_mappings_give_all_pairs_and_the_first_rows_are_taken_if_asked() -> None:
    found = suture.compare({"one": X, "two": Y}, {"two": Y}, samples=40, permutations=19)
    assert list(zip(found["sender_cut"], found["receiver_cut"], strict=True)) == [("one", "two"), ("two", "two")]
    assert found["sender_depth"].tolist() == [0.5, 1.0]
    assert set(found["n"]) == {40}
    assert found["value"][1] == pytest.approx(1)
    assert found["value"][0] == suture.compare(X[:40], Y[:40], permutations=19)["value"].item()
    assert suture.compare(np.tile(X, (50, 1)), np.tile(Y, (50, 1)), permutations=0)["n"].item() == 3000


def test_arrays_are_read_as_they_lie() -> None:
    """Whole numbers, other byte orders, views, read-only memory: the same value as of plain float64."""
    counts = random.poisson(5, size=(60, 8))
    wanted = suture.compare(counts.astype(float), Y, permutations=0)["value"].item()
    frozen = counts.astype(float)
    frozen.flags.writeable = False
    for same in (counts, counts.astype(">f8"), np.asfortranarray(counts), frozen, torch.from_numpy(counts)):
        assert suture.compare(same, Y, permutations=0)["value"].item() == wanted
    assert suture.compare(counts[::-1], Y[::-1], permutations=0)["value"].item() == pytest.approx(wanted)
    before = X.copy()
    suture.compare(X, torch.from_numpy(Y).requires_grad_())
    assert np.array_equal(X, before)


def test_independent_pairs_are_seldom_called_alike() -> None:
    draw = np.random.default_rng(1)
    ps = [
        suture.compare(draw.normal(size=(20, 3)), draw.exponential(size=(20, 4)), permutations=19)["p"].item()
        for _ in range(150)
    ]
    # the 99.9 % point of a binomial of 150 at 5 % is 17
    assert sum(p <= 0.05 for p in ps) <= 17
    assert min(ps) <= 0.05


def test_tokens_left_out_are_left_out_of_the_first_rows_and_do_not_change_their_number() -> None:
    z = random.normal(size=TOKENS.shape)
    first = suture.compare(TOKENS, z, ignore=UNEVEN, samples_as="mean", samples=20, permutations=0)
    alone = suture.compare(TOKENS[:20], z[:20], ignore=UNEVEN[:20], samples_as="mean", permutations=0)
    assert first.equals(alone)
    assert first["n"].item() == 20
    each_token = suture.compare(TOKENS, z, ignore=UNEVEN, samples_as="pixels", permutations=0)
    kept = [side[~UNEVEN] for side in (TOKENS, z)]
    assert each_token["value"].item() == pytest.approx(suture.compare(*kept, permutations=0)["value"].item())
    assert each_token["n"].item() == len(TOKENS)


# --- errors -----------------------------------------------------------------------------------------------------------


def spoilt(value: float) -> np.ndarray:
    found = X.copy()
    found[3, 2] = value
    return found


@each(
    ("x", "y", "settings", "said"),
    [
        (X, Y[:59], {}, "y has 59 rows and x 60: give the same samples"),
        ({"a": X, "b": X[:9]}, Y, {}, r"x\['b'\] has 9 rows and x\['a'\] 60"),
        (X[:1], Y[:1], {}, r"x is \(1, 8\).*two rows or more"),
        (X[:, 0], Y, {}, r"x is \(60,\).*x.reshape\(-1, 1\)"),
        (X, np.ones((60, 3)), {}, "y is constant"),
        (X, Y[:, :0], {}, r"y is \(60, 0\)"),
        (spoilt(np.nan), Y, {}, "x is not finite everywhere"),
        (X, {"v": spoilt(-np.inf)}, {}, r"y\['v'\] is not finite everywhere"),
        (X.astype(object), Y, {}, "x is of object: give an array of real numbers"),
        (X + 1j, Y, {}, "x is of complex128"),
        (X.astype(str), Y, {}, "x is of <U"),
        (np.ma.masked_greater(X, 1), Y, {}, "x has masked values"),
        (torch.from_numpy(X).to_sparse(), Y, {}, "x is a sparse tensor"),
        (X, torch.from_numpy(Y) + 1j, {}, "y is of torch.complex128"),
        (X, Y.tolist(), {}, r"^b is a list; give an array or tensor \(n, features\)"),
        (X, {"v": Y.tolist()}, {}, r"^y\['v'\] is a list"),
        ({}, Y, {}, "x has no arrays"),
        ({1: X}, Y, {}, "a name of x=1"),
        (X, Y, {"data": few_digits}, "data= is for networks"),
        (X, Y, {"cuts": "fc"}, "cuts= is for networks"),
        (X, Y, {"names": ("x", "x")}, "two different names"),
        (X, Y, {"samples": 1}, "samples=1: give 2 or more, or None"),
        (X, Y, {"samples": -1}, "samples=-1: give 2 or more"),
        (X, Y, {"samples": "10"}, "samples='10' is not a whole number"),
        (X, Y, {"permutations": 19.5}, "permutations=19.5 is not a whole number"),
        (X, Y, {"names": "ab"}, "names='ab' is a str; give two different names"),
        (X, Y, {"ignore": [0]}, "ignore= names tokens, and no array has any"),
        (TOKENS, TOKENS + 1, {"ignore": UNEVEN, "samples_as": "pixels"}, "give permutations=0"),
        (
            *(TOKENS, {"z": TOKENS + 1, "flat": X}),
            *({"ignore": UNEVEN, "samples_as": "pixels", "permutations": 0}, r"y\['flat'\] has no tokens"),
        ),
        (X[:3], Y[:3], {}, r"linear_cka\(debiased=True\) of 3 samples is not defined"),
        (X, Y, {"permutations": 5}, "give 19 or more"),
        (X, Y, {"by": "cka"}, "by='cka' is a str"),
    ],
)
def test_arrays_that_mean_nothing_are_refused(x, y, settings, said) -> None:
    with pytest.raises(DataError, match=said):
        suture.compare(x, y, **settings)


def test_a_network_and_an_array_are_not_compared() -> None:
    a, b = hybrids()
    with pytest.raises(DataError, match=r"a=.* is a Network; give an array .* as is the other"):
        suture.compare(a, X)
    with pytest.raises(NetworkError, match=r"b=.* give a network: .*, or two arrays"):
        suture.compare(a, "x", data=few_digits())
    with pytest.raises(DataError, match="names= is for arrays"):
        suture.compare(a, b, data=few_digits(), names=("a", "b"))
    with pytest.raises(DataError, match="data=None"):
        suture.compare(a, b)
    if not torch.cuda.is_available():
        with pytest.raises(DeviceError):
            suture.compare(X, Y, device="cuda")


ALONE = """
import sys, numpy, suture
x = numpy.random.default_rng(0).normal(size=(30, 3))
print(round(suture.compare(x, x)["calibrated"].item(), 4))
print([name for name in sys.modules if name.startswith(("suture.core", "suture.data", "suture.fits"))])
"""


@pytest.mark.slow
def test_nothing_of_networks_is_imported() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", ALONE], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("1.0\n[]\n", "")


# --- files ------------------------------------------------------------------------------------------------------------


def test_files_are_read_by_name_and_never_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "v1.npy", X)
    np.savez(tmp_path / "both.npz", one=X, two=Y)
    save_file({"three": X}, tmp_path / "s.safetensors")
    np.save(tmp_path / "objects.npy", X.astype(object), allow_pickle=True)
    np.savez(tmp_path / "objects.npz", a=X.astype(object))
    for name in ("broken.npy", "broken.npz", "broken.safetensors"):
        (tmp_path / name).write_bytes(b"no such thing")
    np.savez_compressed(tmp_path / "damaged.npz", x=X)
    damaged = bytearray((tmp_path / "damaged.npz").read_bytes())
    damaged[60] ^= 255
    (tmp_path / "damaged.npz").write_bytes(damaged)
    (tmp_path / "both.npz").with_name("several.npy").write_bytes((tmp_path / "both.npz").read_bytes())
    (tmp_path / "v1.npy").with_name("single.npz").write_bytes((tmp_path / "v1.npy").read_bytes())
    wanted = {"v1.npy": {"v1": X}, "both.npz": {"one": X, "two": Y}, "s.safetensors": {"three": X}}
    wanted |= {"single.npz": {"single": X}, "several.npy": wanted["both.npz"]}  # whatever their names promise
    for name, held in wanted.items():
        found = read_arrays(tmp_path / name)
        assert list(found) == list(held)
        for key in held:
            np.testing.assert_array_equal(np.asarray(found[key]), held[key])
    for name, said in {
        "objects.npy": "objects.npy: it holds Python objects, which may run code",
        "objects.npz": "objects.npz: it holds Python objects",
        "broken.npy": "broken.npy: it is not a file of NumPy's",
        "damaged.npz": "cannot read .*damaged.npz",
        "pickles/gone.safetensors": "gone.safetensors: No such file",
        "broken.npz": "cannot read .*broken.npz",
        "broken.safetensors": "cannot read .*broken.safetensors",
        "gone.npy": "gone.npy: No such file",
        "v1.csv": "suffix '.csv': give a file that ends in .npy",
    }.items():
        with pytest.raises(DataError, match=said):
            read_arrays(tmp_path / name)
