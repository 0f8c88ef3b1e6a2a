"""Wrong inputs are refused before anything is measured, by an error that names the offender.

A row is an input, the class of its error, and what the message must name. Nothing of it may take long: what would is
what nobody meant, such as a label of 10⁹.
"""

import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader

from models import images, made_of, small
from suture import Network, Preprocess, Seam, Stitched, Trial, controls, curve, load_data, matrix, measure
from suture.common.errors import (
    CheckpointError,
    CutError,
    DataError,
    FitError,
    FrozenError,
    NetworkError,
    ShapeError,
    SutureError,
)
from suture.data import Data, Samples
from suture.fits import Converged, LeastSquares, Quick
from suture.measurement.scores.scores import Accuracy
from suture.zoo.checkpoints import load_checkpoint

X = images(8, 8)
BYTES = (255 * images(120, 8)).to(torch.uint8)
LABELS = torch.arange(120) % 5
CLASSES = tuple("abcde")
IDS = torch.arange(6).view(2, 3)


def network(model: nn.Module | None = None, **settings: object) -> Network:
    return Network(small() if model is None else model, **({"example": X, "name": "net"} | settings))


def samples(**settings: object) -> Samples:
    return Samples(**({"name": "pets", "images": BYTES, "labels": LABELS, "classes": CLASSES} | settings))


def sets(*counts: int) -> list[Samples]:
    """Samples of their own images."""
    made = [(255 * images(count, 8, seed=10 + i)).to(torch.uint8) for i, count in enumerate(counts)]
    return [samples(images=x, labels=torch.arange(len(x)) % 5, name=f"set {i}") for i, x in enumerate(made)]


def loaded(x: object = BYTES, y: object = LABELS, **settings: object) -> Data:
    test = sets(60)[0]
    return load_data(((x, y), (test.images, test.labels)), name="pets", **settings)


def scored_on(x: object, y: object, **settings: object) -> Data:
    return load_data(((BYTES, LABELS), (x, y)), name="pets", **settings)


def data(**roles: Samples) -> Data:
    fit, validation, score = sets(100, 60, 60)
    return Data("pets", **({"fit": fit, "validation": validation, "score": score} | roles))


def trial(**settings: object) -> Trial:
    a, b, roles = network(name="A"), network(small(1), name="B"), data()
    given = {"fit_data": roles.fit, "validation_data": roles.validation, "score_data": roles.score}
    return Trial(**({"seam": Seam.at(a, b, "relu")} | given | settings))


def to_wrapped(after: Callable[["Wrapped", Tensor], object]) -> Seam:
    """A seam to ``small`` with something done after it."""
    return Seam.at(network(name="A"), network(wrap(after), name="B"), ("relu", "body.relu"))


class Wrapped(nn.Module):
    """``small`` with something done before and after."""

    def __init__(
        self, after: Callable[["Wrapped", Tensor], object], before: Callable[[Tensor], Tensor] = lambda x: x
    ) -> None:
        super().__init__()
        self.body, self.after, self.before, self.count = small(), after, before, 0
        self.register_buffer("number", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor) -> object:
        return self.after(self, self.body(self.before(x)))


def wrap(after: Callable[[Wrapped, Tensor], object], before: Callable[[Tensor], Tensor] = lambda x: x) -> nn.Module:
    return Wrapped(after, before).eval()


def _count(m: Wrapped, out: Tensor) -> Tensor:
    m.number += 1
    return out


def _with(model: nn.Module, name: str, value: float) -> nn.Module:
    with torch.no_grad():
        model.get_parameter(name).view(-1)[0] = value
    return model


class _Awake(nn.Dropout):
    """Dropout that does not know evaluation mode."""

    def train(self, mode: bool = True) -> "_Awake":
        return super().train(True)


def _with_half(model: nn.Module) -> nn.Module:
    model.head.half()
    return model


def _endless() -> nn.Module:
    model = small()
    model.norm.running_var[1] = float("inf")
    return model


def _detached(m: object, x: Tensor) -> Tensor:
    return m.end(m.next(m.relu(m.conv(x)).detach()))  # type: ignore[attr-defined]


def fit_through(forward: Callable[[object, Tensor], Tensor]) -> None:
    a, b = (network(made_of(forward), name=name) for name in "AB")
    roles = data()
    seam = Seam.at(a, b, "conv")
    measure(Trial(seam, roles.fit, roles.validation, roles.score, fit=Quick(70)))


def weights(change: Callable[[Tensor], Tensor], name: str = "head.weight") -> Callable[[Path], None]:
    """Save the weights of ``small`` with one of them changed, and load them."""

    def load(folder: Path) -> None:
        state = small().state_dict()
        state[name] = change(state[name])
        if state[name].layout == torch.strided and not state[name].is_quantized:
            save_file({key: value.contiguous() for key, value in state.items()}, folder / "w.safetensors")
            load_checkpoint(small(1), folder / "w.safetensors")
        else:
            torch.save(state, folder / "w.pt")
            load_checkpoint(small(1), folder / "w.pt")

    return load


def first(count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.int64)


NOT_IMAGES = "floats must be finite and in [0, 1]"
NETWORKS: dict[str, tuple[Callable[[], object], type[SutureError], str]] = {
    "a class for a model": (lambda: network(nn.Linear), NetworkError, "the class Linear"),
    "a state dict": (lambda: network(small().state_dict()), NetworkError, "load_state_dict"),
    "a function": (lambda: network(torch.relu), NetworkError, "give a torch.nn.Module"),
    "nan in a weight": (lambda: network(_with(small(), "conv.weight", float("nan"))), NetworkError, "module 'conv'"),
    "inf in a weight": (lambda: network(_with(small(), "head.bias", float("inf"))), NetworkError, "module 'head'"),
    "inf in a variance": (lambda: network(_endless()), NetworkError, "the running_var of module 'norm' in net"),
    "two outputs": (lambda: network(wrap(lambda m, out: (out, out))), NetworkError, "tuple"),
    "a dictionary without logits": (lambda: network(wrap(lambda m, out: {"scores": out})), NetworkError, "scores"),
    "classes": (lambda: network(wrap(lambda m, out: out.argmax(1))), NetworkError, "torch.int64"),
    "one number": (lambda: network(wrap(lambda m, out: out.mean())), NetworkError, "torch.float32 of shape ()"),
    "rows lost": (lambda: network(wrap(lambda m, out: out[:2])), NetworkError, "a batch of 3"),
    "dimensions lost": (lambda: network(wrap(lambda m, out: out.squeeze())), NetworkError, "1 gave .* of shape .5,"),
    "rows lost late": (lambda: network(wrap(lambda m, out: out[:300])), NetworkError, "300 rows for 1000 images"),
    "images lost late": (
        lambda: network(wrap(lambda m, out: out, lambda x: x[:64])),
        NetworkError,
        "64 rows for 257 images",
    ),
    "parts of a batch": (
        lambda: network(made_of(lambda m, x: torch.cat([m.end(m.conv(part)) for part in x.split(64)]))),
        NetworkError,
        "64 rows for 257 images",
    ),
    "a branch on the number": (
        lambda: network(wrap(lambda m, out: out * 2 if out.shape[0] > 3 else out)),
        NetworkError,
        "in a batch of 7 and in one of 3",
    ),
    "a late branch in code that makes tensors": (
        lambda: network(wrap(lambda m, out: out + torch.ones(out.shape) if len(out) > 300 else out)),
        NetworkError,
        "in a batch of 1000 and in one of 3",
    ),
    "a late branch on the number": (
        lambda: network(wrap(lambda m, out: -out if len(out) > 300 else out)),
        NetworkError,
        "in a batch of 1000 and in one of 3",
    ),
    "another image": (lambda: network(wrap(lambda m, out: out.flip(0))), NetworkError, "the other images of its batch"),
    "the mean of a batch": (
        lambda: network(wrap(lambda m, out: out - out.mean(0))),
        NetworkError,
        "the other images of its batch",
    ),
    "the size of a batch": (
        lambda: network(wrap(lambda m, out: out / out.norm())),
        NetworkError,
        "the other images of its batch",
    ),
    "noise": (lambda: network(wrap(lambda m, out: out + torch.randn(()))), NetworkError, "random in evaluation mode"),
    "dropout": (
        lambda: network(wrap(lambda m, out: nn.functional.dropout(out))),
        NetworkError,
        r"random in evaluation mode: .* because line \d+ of test_wrong_inputs.py draws numbers \(\w+\); leave that out",
    ),
    "dropout that stays in training mode": (
        lambda: network(nn.Sequential(small(), _Awake())),
        NetworkError,
        r"because a _Awake draws numbers \(\w+\)",
    ),
    "rarely random": (
        lambda: network(wrap(lambda m, out: out + (torch.rand(()) < 1e-6))),
        NetworkError,
        "random in evaluation mode",
    ),
    "a counter in a buffer": (lambda: network(wrap(_count)), NetworkError, "'number'.*if self.training"),
    "one image alone fails": (
        lambda: network(wrap(lambda m, out: out.reshape(-1, 2, 5).sum(1))),
        NetworkError,
        "net",
    ),
    "a misspelt constant": (lambda: network(constants=("norm.running_maen",)), NetworkError, "norm.running_mean"),
    "a constant as a lone name": (lambda: network(constants="head"), NetworkError, "names 'head'"),
    "an accuracy in per cent": (lambda: network(expected_accuracy=93.0), NetworkError, "expected_accuracy=93"),
    "an accuracy in words": (lambda: network(expected_accuracy="high"), NetworkError, "expected_accuracy='high'"),
    "no example": (lambda: network(example=None), DataError, "NoneType"),
    "an array": (lambda: network(example=X.numpy()), DataError, "ndarray; give data.example"),
    "an example without images": (lambda: network(example=X[:0]), DataError, "n ≥ 1"),
    "an example with nan": (lambda: network(example=X * float("nan")), DataError, "finite"),
    "weights of two types": (
        lambda: network(_with_half(small())),
        NetworkError,
        "its weights are of float16 and float32: try one type, model.float(); if it takes other ones",
    ),
    "a token id beyond its table": (
        lambda: network(nn.Sequential(nn.Embedding(50, 4), nn.Flatten(), nn.Linear(12, 5)), example=IDS + 90),
        NetworkError,
        r"row \d+ of '0.weight' is looked up, which has 50 rows: give smaller token ids",
    ),
    "a grey example": (lambda: network(example=X[:, :1]), NetworkError, "does not run on"),
    "an example without channels": (lambda: network(example=X[:, 0]), DataError, "(n, C, H, W)"),
    "an example of int32": (lambda: network(example=BYTES.int()), DataError, "torch.int32"),
    "bytes as floats": (lambda: network()(BYTES.float()), DataError, NOT_IMAGES),
    "bytes as floats to a prefix": (lambda: network().upto("relu")(BYTES.float()), DataError, NOT_IMAGES),
    "normalised images": (lambda: network()((X - 0.45) / 0.22), DataError, NOT_IMAGES),
    "images with nan": (lambda: network()(X * float("nan")), DataError, NOT_IMAGES),
    "a random preprocessing": (lambda: network(preprocess=lambda x: x + torch.rand(())), DataError, "random"),
    "a preprocessing of a batch": (
        lambda: network(preprocess=lambda x: x - x.mean(0, keepdim=True)),
        DataError,
        "depend on the others in its batch",
    ),
    "a preprocessing of pictures": (
        lambda: network(preprocess=lambda x: x.convert("RGB")),
        DataError,
        "'Tensor' object has no attribute 'convert'; it is called with a batch of images, a tensor of floats in [0, 1]",
    ),
    "a std of 0": (lambda: Preprocess(std=(0.0,)), DataError, "above 0"),
    "a mean without its tuple": (lambda: Preprocess(mean=0.5), DataError, "mean=(0.5,)"),  # type: ignore[arg-type]
    "a mean of four": (lambda: network(preprocess=Preprocess(mean=(0.1,) * 4)), DataError, "4 channels"),
    "no such cut": (lambda: network().upto("layer9"), CutError, "layer9"),
    "the output for a cut": (
        lambda: network().upto("head"),
        CutError,
        "no cut 'head' in net (it is the network's output",
    ),
    "a number for a cut": (lambda: network().upto(3), CutError, "no cut '3'"),  # type: ignore[arg-type]
    "an output of a single one": (lambda: network(output="main"), NetworkError, "is one tensor; leave out output="),
    "a tokeniser that is none": (lambda: network(tokenizer=3), NetworkError, "is a int; give one of transformers"),
    "a stitch to another shape": (
        lambda: Stitched(Seam.at(network(), network(), "relu"), nn.Upsample(scale_factor=2))(X),
        ShapeError,
        "give a stitch that maps to these",
    ),
    "probabilities": (
        lambda: trial(seam=to_wrapped(lambda m, o: o.softmax(1))),
        NetworkError,
        "the outputs of B are probabilities",
    ),
    "a gradient that ends": (lambda: fit_through(_detached), FitError, "no gradient passes"),
}

DATA: dict[str, tuple[Callable[[], object], type[SutureError], str]] = {
    "a label of a billion": (lambda: loaded(y=LABELS * 10**8), DataError, "400,000,000"),
    "the highest label": (lambda: loaded(y=torch.full((120,), 2**62)), DataError, "4,611,686,018,427,387,904"),
    "ten billion classes": (lambda: loaded(classes=10**10), DataError, "9,999,999,999"),
    "no class": (lambda: loaded(classes=0), DataError, "classes is empty"),
    "less than no class": (lambda: loaded(classes=-3), DataError, "classes is empty"),
    "too few classes": (lambda: loaded(classes=3), DataError, "range from 0 to 4"),
    "a class twice": (lambda: loaded(classes=("a", "a", "b", "c", "d")), DataError, "'a'"),
    "a negative label": (lambda: loaded(y=LABELS - 1), DataError, "range from -1"),
    "labels in fractions": (lambda: loaded(y=LABELS.float()), DataError, "torch.float32"),
    "labels of truth": (lambda: loaded(y=LABELS > 2), DataError, "torch.bool"),
    "labels as one-hot": (lambda: loaded(y=nn.functional.one_hot(LABELS)), DataError, "(108, 5)|(120, 5)"),
    "too few labels": (lambda: loaded(y=LABELS[:-1]), DataError, "119"),
    "no labels": (lambda: loaded(y=None), DataError, "without labels"),
    "words for labels": (lambda: loaded(y=["cat"] * 120), DataError, "list"),
    "bytes as floats": (lambda: loaded(BYTES.float()), DataError, NOT_IMAGES),
    "bytes as doubles": (lambda: loaded(BYTES.double().numpy()), DataError, NOT_IMAGES),
    "normalised images": (lambda: loaded((BYTES / 255 - 0.5) / 0.25), DataError, NOT_IMAGES),
    "divided twice": (lambda: loaded(BYTES / 255 / 255), DataError, "nearly black"),
    "fractions as bytes": (lambda: loaded((BYTES > 99).to(torch.uint8)), DataError, "0 and 1 alone"),
    "infinite images": (lambda: loaded(BYTES / 0.0), DataError, "finite"),
    "images with nan": (lambda: loaded(BYTES / 255 * float("nan")), DataError, "finite"),
    "images of int32": (lambda: loaded(BYTES.int()), DataError, "torch.int32"),
    "images of int8": (lambda: loaded((BYTES // 2).to(torch.int8)), DataError, "torch.int8"),
    "complex images": (lambda: loaded(BYTES.to(torch.complex64)), DataError, "complex64"),
    "channels last": (lambda: loaded(BYTES.permute(0, 2, 3, 1)), DataError, "transpose"),
    "flat images": (lambda: loaded(BYTES.flatten(1)), DataError, "(N, C, H, W)"),
    "volumes": (lambda: loaded(BYTES[:, :, None]), DataError, "(N, C, H, W)"),
    "empty images": (lambda: loaded(BYTES[:, :, :0]), DataError, "none empty|(120, 3, 0, 8)"),
    "one image": (lambda: loaded(BYTES[:1], LABELS[:1]), DataError, "1 sample"),
    "no images": (lambda: loaded(BYTES[:0], LABELS[:0]), DataError, "0 samples"),
    "a list of images": (lambda: loaded(list(BYTES)), DataError, "list"),
    "an array of objects": (lambda: loaded(np.array([None] * 120)), DataError, "object"),
    "negative token ids": (lambda: loaded(torch.full((120, 4), -1)), DataError, "begin at -1"),
    "one class to fit": (lambda: loaded(y=first(120), classes=5), DataError, "are of class 0"),
    "one class to fit, by hand": (lambda: data(fit=replace(sets(100)[0], labels=first(100))), DataError, "of class 0"),
    "other classes in the test": (
        lambda: load_data(((BYTES, LABELS % 3), (images(60, 8), 3 + LABELS[:60] % 2)), name="pets"),
        DataError,
        "no class that 'pets' scores",
    ),
    "the test images again": (lambda: scored_on(BYTES, LABELS), DataError, "120 of the 120 images of 'pets/score'"),
    "some test images again": (lambda: scored_on(BYTES[20:100], LABELS[20:100]), DataError, "80 of the 80 images"),
    "the same to fit and validate": (lambda: data(validation=sets(100)[0]), DataError, "'set 0' are also in set 0"),
    "in another order": (
        lambda: data(validation=sets(100)[0].take(torch.arange(100).flip(0), "back")),
        DataError,
        "'back' are also in set 0",
    ),
    "the same to validate and score": (lambda: data(score=sets(100, 60)[1]), DataError, "'set 1' are also in"),
    "a fifth of them": (
        lambda: data(
            score=replace(
                sets(60, 60, 60)[2], images=torch.cat([sets(100)[0].images[:12], sets(2, 2, 60)[2].images[:48]])
            )
        ),
        DataError,
        "12 of the 60",
    ),
    "no validation": (lambda: loaded(validation_fraction=0.0), DataError, "validation_fraction=0"),
    "all validation": (lambda: loaded(validation_fraction=1.0), DataError, "validation_fraction=1"),
    "another size in the test": (lambda: scored_on(images(60, 9), LABELS[:60]), DataError, "must agree"),
    "more classes in the test": (
        lambda: scored_on(images(60, 8), LABELS[:60] + 4, classes=5),
        DataError,
        "range from 4 to 8",
    ),
    "a source that is none": (lambda: load_data("no-such-data"), DataError, "no-such-data"),
    "a loader": (lambda: load_data([1, 2, 3]), DataError, "list"),  # type: ignore[arg-type]
    "a number": (lambda: load_data(7), DataError, "a int"),  # type: ignore[arg-type]
    "more to fit than there is": (lambda: data().limited(fit=10**9), DataError, "1000000000"),
    "no samples to score": (lambda: data().limited(score=0), DataError, "2 to 60"),
}

TRIALS: dict[str, tuple[Callable[[], object], type[SutureError], str]] = {
    "other classes than outputs": (
        lambda: trial(score_data=replace(sets(2, 2, 60)[2], classes=(*CLASSES, "f"))),
        DataError,
        "6 classes (a, b, c, d, e, f), but the head of the receiver B has 5 outputs",
    ),
    "tokens for classes": (
        lambda: trial(seam=to_wrapped(lambda m, o: o[:, None])),
        DataError,
        r"5 classes need outputs \(n, 5\), and these are \(n, 1, 5\); give the model with its head",
    ),
    "a loader for data": (
        lambda: curve(network(name="A"), network(small(1), name="B"), data=DataLoader(LABELS)),
        DataError,
        "^data is a DataLoader; give data",
    ),
    "images of another size": (
        lambda: trial(score_data=samples(images=images(60, 9), labels=LABELS[:60])),
        DataError,
        "pets|cut for",
    ),
    "grey images": (lambda: trial(fit_data=samples(images=BYTES[:, :1])), SutureError, "pets|channels"),
    "no scores": (lambda: trial(scores=()), DataError, "at least one score"),
    "a score twice": (lambda: trial(scores=(Accuracy(), Accuracy())), DataError, "'accuracy'"),
    "a class that is none": (lambda: trial(scores=(Accuracy((7,)),)), DataError, "class"),
    "a word for a fit": (lambda: trial(fit="quick"), FitError, "fit='quick'"),
    "half a seed": (lambda: trial(seed=0.5), DataError, "seed=0.5"),
    "no patience": (lambda: Converged(patience=0), FitError, "patience"),
    "no steps": (lambda: Converged(cap=0), FitError, "cap"),
    "a batch of none": (lambda: Quick(batch=0), FitError, "batch"),
    "shuffled scores": (lambda: trial(score_data=data().score.shuffled(0)), DataError, "broken"),
    "a control that is none": (
        lambda: curve(network(name="A"), network(small(1), name="B"), data=data(), controls=("x",)),
        SutureError,
        "no control 'x'",
    ),
    "no seeds": (
        lambda: curve(network(name="A"), network(small(1), name="B"), data=data(), seeds=0),
        DataError,
        "seeds=0",
    ),
    "two networks of one name": (lambda: matrix([network(), network(small(1))], data=data()), NetworkError, "'net'"),
    "a changed network": (lambda: _measure_changed(), FrozenError, "changed"),
    "noise for one class": (
        lambda: controls.clustered_noise(trial(fit_data=replace(sets(100)[0], labels=first(100)))),
        DataError,
        "class",
    ),
}


def _measure_changed() -> None:
    model = small()
    made = network(model, copy=False)
    with torch.no_grad():
        model.conv.weight[0] += 1
    roles = data()
    measure(
        Trial(
            Seam.at(made, network(small(1), name="B"), "relu"),
            roles.fit,
            roles.validation,
            roles.score,
            fit=LeastSquares(),
        )
    )


WEIGHTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "whole numbers": (weights(lambda w: (100 * w).to(torch.int8)), "head.weight in whole numbers"),
    "long numbers": (weights(lambda w: (100 * w).long()), "head.weight in whole numbers"),
    "truth": (weights(lambda w: w > 0), "head.weight in bool"),
    "complex": (weights(lambda w: w.to(torch.complex64)), "head.weight in complex64"),
    "sparse": (weights(Tensor.to_sparse), "head.weight in float32, sparse_coo"),
    "fractions of a counter": (
        weights(Tensor.float, "norm.num_batches_tracked"),
        "norm.num_batches_tracked in floating",
    ),
    "another shape": (weights(lambda w: w[:, :2]), "head.weight"),
    "an outer axis": (weights(lambda w: w[None]), "head.weight"),
}


@pytest.mark.parametrize(
    ("make", "error", "named"),
    (rows := [*NETWORKS.values(), *DATA.values(), *TRIALS.values()]),
    ids=[*NETWORKS, *DATA, *TRIALS],
)
def test_a_wrong_input_is_refused_by_its_name(make: Callable[[], object], error: type[SutureError], named: str) -> None:
    since = time.perf_counter()
    with pytest.raises(error) as caught:
        make()
    said = str(caught.value)
    assert named in said or re.search(named, said), said
    assert time.perf_counter() - since < 10


@pytest.mark.parametrize(("load", "named"), WEIGHTS.values(), ids=WEIGHTS)
def test_weights_of_another_kind_are_refused(load: Callable[[Path], None], named: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path)
    assert named in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_weights_of_another_precision_load(dtype: torch.dtype, tmp_path: Path) -> None:
    weights(lambda w: w.to(dtype))(tmp_path)


def test_what_real_images_show_is_seen_before_anything_is_measured() -> None:
    """On the probes all is well: only images with a bright corner make the model look at its batch."""

    def dim(m: Wrapped, out: Tensor) -> Tensor:
        return out

    model = wrap(dim, lambda x: x * (1 + 100 * (x[:, :, 0, 0] > 0.95).float().mean()))
    made = network(model, example=X.clamp(max=0.9))
    roles = data()
    with pytest.raises(
        NetworkError, match=r"net.* gives different outputs for one image in a batch of \d+ and in one of 1"
    ):
        measure(
            Trial(
                Seam.at(made, network(small(1), name="B"), ("body.relu", "relu")),
                roles.fit,
                roles.validation,
                roles.score,
                fit=LeastSquares(),
            )
        )
