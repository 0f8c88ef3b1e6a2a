"""What changes the key of a trial, and so asks for another measurement, and what does not.

The key must see whatever can change a number: an old result under it would be a wrong one. It must see nothing else,
and be the same in every process, or a run that was stopped would start anew.
"""

import copy
import functools
import importlib
import itertools
import linecache
import os
import random
import re
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, make_dataclass, replace
from enum import Enum
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import suture
from loops import each
from models import images, seeded, small, trial_of
from suture import Network, Samples, Trial, measure
from suture.common.errors import CodeError
from suture.common.hashing import identity, keyed_as, registered_name
from suture.common.seeds import digest
from suture.core.stitches import Conv, LowRank, Orthogonal, Stitch
from suture.data.changes import Variant
from suture.data.noise import ClusteredNoise
from suture.data.preprocess import Preprocess
from suture.data.tasks import DenseClassification
from suture.fits import SGD, Adam, Fit, LeastSquares, MatchActivations, OneCycle, Random, TaskLoss
from suture.fits.optimisers import Optimiser, Schedule
from suture.measurement.indices import Index
from suture.measurement.scores.pooled import default_scores
from suture.measurement.scores.scores import Accuracy, CrossEntropy, Score
from suture.measurement.trials.versions import DECLARED
from suture.runs.runners.transport import Packer, Unpacker
from suture_papers.complexity import Complexity
from suture_papers.training.augment import Augmentation
from suture_papers.training.recipe import Objective, Penalty

TESTS = Path(__file__).parents[1]


def network(model: nn.Module | None = None, **settings) -> Network:
    return Network(small() if model is None else model, example=images(4, 8, seed=5), **settings)


def samples(seed: int = 1, n: int = 40) -> Samples:
    labels = torch.arange(n) % 5
    return Samples("some", images(n, 8, seed=seed), labels, tuple("01234"))


def trial(**settings) -> Trial:
    one = network()
    plain = {"sender": one, "receiver": one, "sender_cut": "relu", "receiver_cut": "relu"}
    data = {"fit_data": samples(1), "validation_data": samples(2), "score_data": samples(3)}
    return trial_of(**plain | data | {"fit": LeastSquares()} | settings)


def changed(model: nn.Module, name: str) -> nn.Module:
    """The model with the last bit of one of its tensors another."""
    tensor = dict([*model.named_parameters(), *model.named_buffers()])[name]
    with torch.no_grad():
        tensor.view(-1)[-1:].view(torch.uint8)[0] ^= 1
    return model


@dataclass(frozen=True)
class Own(Score):
    """A score of the user's."""

    scale: float = 1.0
    name = "own"
    unit = "raw"
    higher_is_better = None

    def per_sample(self, logits, labels):
        return logits.double().amax(1) * self.scale


def defined(source: str, name: str = "Own"):
    """What source code defines, as a cell of a notebook would."""
    space = {"__name__": "__main__", "Score": Score, "torch": torch, "nn": nn, "dataclass": dataclass}
    cell = f"<cell {digest(source)}>"
    linecache.cache[cell] = len(source), None, source.splitlines(keepends=True), cell
    exec(compile(source, cell, "exec"), space)
    return space[name]


OWN = """
@dataclass(frozen=True)
class Own(Score):
    scale: float = 1.0
    name = "own"
    unit = "raw"
    higher_is_better = None

    def per_sample(self, logits, labels):
        'The largest logit.'
        return logits.double().amax(1) * self.scale
"""


def scored(source: str, **settings) -> Trial:
    return trial(scores=(defined(source)(**settings),))


def labelled(change: int) -> Samples:
    plain = samples(3)
    labels = plain.labels.clone()
    labels[change] = (labels[change] + 1) % 5
    return replace(plain, labels=labels)


def hidden(value: float):
    return lambda x: x * value


def with_head(factor: float) -> nn.Module:
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head, self.factor = nn.Conv2d(3, 4, 3), nn.Linear(4, 5), factor

        def forward(self, x):
            return self.head(self.conv(x).relu().mean((2, 3)) * self.factor)

    return seeded(Head)


# ------------------------------------------------------------------------------------------------------ trials

CHANGES = {
    "nothing": lambda: trial(),
    "sender": lambda: trial(sender=network(small(1))),
    "receiver": lambda: trial(receiver=network(small(1))),
    "weight": lambda: trial(sender=network(changed(small(), "head.weight"))),
    "buffer": lambda: trial(sender=network(changed(small(), "norm.running_var"))),
    "count in a buffer": lambda: trial(sender=network(changed(small(), "norm.num_batches_tracked"))),
    "noise": lambda: trial(sender=ClusteredNoise((4, 8, 8), 5), sender_cut=""),
    "scale of noise": lambda: trial(sender=ClusteredNoise((4, 8, 8), 5, scale=0.2), sender_cut=""),
    "hyper-parameter": lambda: trial(sender=network(with_head(2.0))),
    "another hyper-parameter": lambda: trial(sender=network(with_head(3.0))),
    "preprocessing": lambda: trial(sender=network(preprocess=Preprocess(std=(2.0,)))),
    "a function": lambda: trial(sender=network(preprocess=lambda x: x * 0.5)),
    "its constant": lambda: trial(sender=network(preprocess=lambda x: x * 0.25)),
    "a closure": lambda: trial(sender=network(preprocess=hidden(0.5))),
    "its content": lambda: trial(sender=network(preprocess=hidden(0.25))),
    "sender's cut": lambda: trial(sender_cut="norm"),
    "receiver's cut": lambda: trial(receiver_cut="norm"),
    "fit data": lambda: trial(fit_data=samples(9)),
    "pairs": lambda: trial(fit_data=samples(1).shuffled(1)),
    "other pairs": lambda: trial(fit_data=samples(1).shuffled(2)),
    "validation data": lambda: trial(validation_data=samples(9)),
    "roles": lambda: trial(fit_data=samples(2), validation_data=samples(1)),
    "score data": lambda: trial(score_data=samples(9)),
    "a label": lambda: trial(score_data=labelled(0)),
    "names of the classes": lambda: trial(score_data=replace(samples(3), classes=tuple("abcde"))),
    "kernel": lambda: trial(stitch=Conv(3)),
    "family": lambda: trial(stitch=Orthogonal()),
    "rank": lambda: trial(stitch=LowRank(2)),
    "another rank": lambda: trial(stitch=LowRank(3)),
    "ridges": lambda: trial(fit=LeastSquares(ridges=(1e-3,))),
    "fit": lambda: trial(fit=TaskLoss()),
    "other fit": lambda: trial(fit=MatchActivations()),
    "steps": lambda: trial(fit=TaskLoss(steps=7)),
    "start": lambda: trial(fit=TaskLoss(start=Random())),
    "optimiser": lambda: trial(fit=TaskLoss(optimiser=SGD())),
    "rate": lambda: trial(fit=TaskLoss(optimiser=Adam(lr=2e-3))),
    "schedule": lambda: trial(fit=TaskLoss(schedule=OneCycle())),
    "warmup": lambda: trial(fit=TaskLoss(schedule=OneCycle(0.3))),
    "seed": lambda: trial(seed=1),
    "scores": lambda: trial(scores=(Accuracy(),)),
    "their order": lambda: trial(scores=(CrossEntropy(), Accuracy())),
    "their settings": lambda: trial(scores=(Accuracy((1, 2)),)),
    "own score": lambda: scored(OWN),
    "its setting": lambda: scored(OWN, scale=2.0),
    "its code": lambda: scored(OWN.replace("amax(1)", "amin(1)")),
    "a constant in its code": lambda: scored(OWN.replace("* self", "* 3 * self")),
    "its unit": lambda: scored(OWN.replace('"raw"', '"nats"')),
    "its name": lambda: scored(OWN.replace('"own"', '"mine"')),
    "a method of its own": lambda: scored(OWN + "\n    def selects(self, labels):\n        return labels > 0\n"),
    "a function that it calls": lambda: scored(calling("x + 1")),
    "the code of that": lambda: scored(calling("x + 2")),
    "a base of its own": lambda: scored(inheriting("amax(1)")),
    "the code of that base": lambda: scored(inheriting("amin(1)")),
}


def calling(body: str) -> str:
    helper = f"LEVEL = 1\ndef helper(x):\n    return (lambda y: {body.replace('x', 'y')} * LEVEL)(x)\n"
    return helper + OWN.replace("logits.double()", "helper(logits.double())")


def inheriting(body: str) -> str:
    base = OWN.replace("class Own", "class Base").replace("amax(1)", body)
    return f"{base}\n@dataclass(frozen=True)\nclass Own(Base):\n    pass\n"


@functools.cache
def trials() -> dict[str, Trial]:
    return {name: make() for name, make in CHANGES.items()}


@functools.cache
def keys() -> dict[str, str]:
    return {name: made.key for name, made in trials().items()}


def test_whatever_can_change_a_number_changes_the_key():
    found = keys()
    same = [pair for pair in itertools.combinations(found, 2) if found[pair[0]] == found[pair[1]]]
    assert same == []


def test_another_version_of_the_measurement_changes_every_key_and_no_seed(monkeypatch):
    before, found = keys(), measure(trial(fit=TaskLoss(steps=3, start=Random())))
    key = found.trial.key
    monkeypatch.setitem(DECLARED, "measurement", 1000)
    assert not set(before.values()) & {replace(made).key for made in trials().values()}
    again = measure(trial(fit=TaskLoss(steps=3, start=Random())))
    assert again.trial.key != key
    assert identity(again.stitch) == identity(found.stitch)
    assert again.scores == found.scores


@contextmanager
def moved_and_renamed(*kinds: type) -> Iterator[None]:
    names = ("__module__", "__qualname__", "__name__")
    before = [[getattr(kind, name) for name in names] for kind in kinds]
    try:
        for kind in kinds:
            kind.__module__, kind.__name__ = "suture.elsewhere.deep", f"Another{kind.__name__}"
            kind.__qualname__ = kind.__name__
        yield
    finally:
        for kind, values in zip(kinds, before, strict=True):
            for name, value in zip(names, values, strict=True):
                setattr(kind, name, value)


def test_a_class_that_moves_and_is_renamed_keeps_its_keys_and_seeds():
    choices = {"stitch": Conv(3), "fit": TaskLoss(optimiser=SGD(), start=Random()), "scores": (Accuracy((1, 2)),)}
    plain = Preprocess(std=(2.0,))
    one = network(preprocess=plain)
    before = trial(sender=one, **choices)
    assert before.key, before.fit_description
    with moved_and_renamed(Conv, TaskLoss, SGD, Random, Accuracy, Preprocess):
        assert type(choices["stitch"]).__name__ == "AnotherConv"
        after = trial(sender=network(preprocess=plain), **choices)
        assert (after.key, after.fit_description) == (before.key, before.fit_description)


def test_whatever_counts_by_name_has_a_registered_one():
    bases = [Fit, Stitch, Score, Index, Complexity, Optimiser, Schedule, Variant, Objective, Augmentation, Penalty]
    for kind in bases:  # grows while it is walked through
        assert registered_name(kind) or not kind.__module__.startswith("suture."), kind
        bases += kind.__subclasses__()


def test_two_classes_cannot_have_one_registered_name():
    with pytest.raises(ValueError, match="cannot be called 'Conv' in keys, since suture"):
        keyed_as("Conv")(Own)


@pytest.mark.slow
def test_keys_are_the_same_whatever_was_made_before():
    names = list(CHANGES)
    random.Random(1).shuffle(names)
    hooked = small()
    for _ in range(3):  # torch numbers hooks
        hooked.relu.register_forward_hook(lambda *args: None).remove()
    assert {name: CHANGES[name]().key for name in names} == keys()


@pytest.mark.slow
def test_keys_are_the_same_in_another_process():
    code = "import test_keys; print(*test_keys.keys().values())"
    path = os.pathsep.join([str(Path(suture.__file__).parents[1]), str(TESTS), str(TESTS / "common")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONHASHSEED": "11", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == list(keys().values()), done.stderr


@each("name", ["fit", "own score", "a function that it calls", "the code of that base"])
def test_keys_are_the_same_after_being_pickled(name):
    sent = CHANGES[name]()
    settings = {k: cloudpickle.loads(cloudpickle.dumps(getattr(sent, k))) for k in ("stitch", "fit", "scores")}
    assert replace(sent, **settings).key == sent.key


def test_names_and_labels_are_no_part_of_the_key():
    plain = keys()["nothing"]
    renamed = network(name="other")
    assert trial(sender=renamed, receiver=renamed).key == plain
    assert trial(control="self", study="some", network_seed=3).key == plain
    assert trial(fit_data=replace(samples(1), name="other")).key == plain


def test_what_is_written_out_is_no_other_than_the_default():
    plain = keys()["nothing"]
    assert trial(stitch=Conv(), scores=(Accuracy(), CrossEntropy()), seed=0).key == plain
    assert trial(sender=network(preprocess=Preprocess()), fit=LeastSquares(**vars(LeastSquares()))).key == plain
    assert trial(fit=TaskLoss(**vars(copy.deepcopy(TaskLoss())))).key == keys()["fit"]
    assert scored(OWN, scale=1.0).key == keys()["own score"]
    assert trial(seed=int(np.int64(0)), scores=(Accuracy((np.int64(1), 2)),)).key == keys()["their settings"]


@each(
    ("of", "to"),
    [
        ("\n    def per", "\n    # first\n\n    # second\n    def per"),
        ("        return", "        # because\n        return"),
        ("The largest logit", "The logit that is largest"),
        ("    scale", '    """A score."""\n\n    scale'),
        ("@data", "\n\n\n@data"),
        ("logits.double().amax(1) * self.scale", "(logits.double()\n            .amax(1)\n            * self.scale)"),
        ("\n    def per", "\n    def __repr__(self):\n        return 'own'\n\n    def per"),
    ],
)
def test_every_edit_of_the_user_s_code_changes_the_key(of, to):
    """Comments too: a text can be compared in every process, and nothing has to know what a comment is."""
    assert of in OWN
    assert scored(OWN.replace(of, to)).key != keys()["own score"]


def test_having_used_things_changes_no_key():
    sender, receiver, score = network(small(1)), network(), Own()
    made = trial(sender=sender, receiver=receiver, scores=(score,))
    measure(made)
    sender(images(3, 8))
    _ = repr(sender), sender.untrained(1), sender.cuts["relu"], made.fit_data.shuffled(3), hash(made)
    again = replace(made, seed=0)
    assert "key" not in vars(again)
    assert again.key == trial(sender=network(small(1)), receiver=network(), scores=(Own(),)).key


def test_what_a_stage_leaves_behind_changes_no_fingerprint():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.calls, self.last = nn.Conv2d(3, 4, 3), 0, None

        def forward(self, x):
            self.calls += 1
            self.last = self.conv(x)
            return self.last

    def made(model: nn.Module) -> Network:
        return network(model, stages=["0", "1", "2", "3"])

    model = seeded(lambda: nn.Sequential(Counts(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)))
    first = made(model)
    first(images(2, 8))
    model(images(2, 8))
    assert model[0].calls > 0
    assert made(model).fingerprint == first.fingerprint == first._fingerprint()


@each("kind", ["function", "list", "helper", "global"])
def test_all_that_a_stage_does_is_in_the_fingerprint(kind):
    source = """
    def double(x):
        return x * {factor}
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.by, self.numbers = {function}, {numbers}
        def helper(self, x):
            return x * {helper}
        def forward(self, x):
            return double(self.helper(self.by(x) * self.numbers[0]))
    """.replace("\n    ", "\n")

    def made(factor: float) -> Network:
        plain = {"factor": 1.0, "function": "torch.relu", "numbers": [1.0], "helper": 1.0}
        new = {
            "function": {"function": "torch.tanh" if factor > 1 else "torch.relu"},
            "list": {"numbers": [factor]},
            "helper": {"helper": factor},
            "global": {"factor": factor},
        }[kind]
        stage = defined(source.format(**plain | new))()
        rest = nn.AdaptiveAvgPool2d(1), nn.Flatten()
        model = seeded(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), stage, *rest, nn.Linear(4, 5)))
        return network(model, stages=["0", "1", "2", "3", "4"])

    assert made(1.0).fingerprint == made(1.0).fingerprint != made(2.0).fingerprint


# ------------------------------------------------------------------------------------------------------ identities


class Colour(Enum):
    RED = 1
    BLUE = 2


class Plain:
    """An object that remembers what it once computed."""

    def __init__(self, value: object) -> None:
        self.value = value

    @functools.cached_property
    def costly(self) -> str:
        return f"{self.value}!"

    def method(self, x: object) -> object:
        return x, self.value


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


@dataclass
class Listed:
    values: list[object] = field(default_factory=list)


class Module(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        nn.init.constant_(self.inner.weight, value)
        nn.init.zeros_(self.inner.bias)


def other_default(value):
    return lambda x, value=value: x + value


def keyword_default(value):
    return lambda x, *, value=value: x + value


def nested(value):
    return defined(f"Own = lambda x: (lambda y: y + {value})(x)")


@functools.cache
def remembering(x):
    return x + 1


@functools.cache
def forgetting(x):
    return x + 2


class Printed:
    """An object with a fingerprint and a text of its own, which are none of Suture's."""

    fingerprint = "the same"

    def __init__(self, value: object) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "the same"


class Items(list):
    """A list that holds more than its items."""


def listed(value: object) -> Items:
    made = Items([1])
    made.more = value
    return made


def annotated(value: object):
    def made(x):
        return x

    made.value = value
    return made


def wrapping(value: float):
    @functools.wraps(nn.functional.relu)
    def relu(x):
        return value * x

    return relu


def hooked(with_kwargs: bool) -> nn.Module:
    model = Module(1.0)
    model.register_forward_pre_hook(normalised, with_kwargs=with_kwargs)
    return model


def going_back(hook) -> nn.Module:
    model = Module(1.0)
    model.register_full_backward_hook(hook)
    return model


def of_graph(rate: float) -> nn.Module:
    return torch.fx.symbolic_trace(nn.Sequential(nn.Dropout(rate)))


def parametrised(function) -> nn.Module:
    class Symmetric(nn.Module):
        def forward(self, x):
            return function(x)

    model = Module(1.0)
    torch.nn.utils.parametrize.register_parametrization(model.inner, "weight", Symmetric())
    return model


def set_on(thing, **attributes):
    vars(thing).update(attributes)
    return thing


KEPT = [Plain(1), Plain(2)]  # what is only referred to weakly is kept here


def count_down(n):
    return count_down(n - 1) if n else 0


def even(n):
    return n == 0 or odd(n - 1)


def odd(n):
    return n != 0 and even(n - 1)


def normalised(x):
    return nn.functional.normalize(x)


def relu(x):
    return nn.functional.relu(x)


PAIRS = {
    "numbers": (1, 2),
    "kinds of number": (1, 1.0),
    "truth": (True, 1),
    "text": ("a", "b"),
    "text and bytes": ("a", b"a"),
    "texts like addresses": ("at 0x1f", "x at 0x1f"),
    "texts like numbers of NumPy's": ("np.int64(3)", "3"),
    "long patterns": (re.compile("a" * 300 + "b"), re.compile("a" * 300 + "c")),
    "objects that look alike": (Printed(1), Printed(2)),
    "lists with attributes": (listed(1), listed(2)),
    "functions with attributes": (annotated(1), annotated(2)),
    "functions that pretend to be a library's": (wrapping(1.0), nn.functional.relu),
    "and what they close over": (wrapping(1.0), wrapping(2.0)),
    "functions on one line": (lambda x: x + 1, lambda x: x + 1 + 0),
    "attributes called hooks": (set_on(Module(1.0), my_hooks=1), set_on(Module(1.0), my_hooks=2)),
    "hooks with keywords": (hooked(False), hooked(True)),
    "hooks of the gradient": (going_back(normalised), going_back(relu)),
    "parts of graphs": (of_graph(0.1), of_graph(0.2)),
    "parametrisations": (parametrised(relu), parametrised(normalised)),
    "made dataclasses": (make_dataclass("A", [("a", int, 1)]), make_dataclass("A", [("a", int, 2)])),
    "weak references": (weakref.ref(KEPT[0]), weakref.ref(KEPT[1])),
    "nothing": (None, "None"),
    "sign": (0.0, -0.0),
    "lists": ([1, 2], [2, 1]),
    "nesting": ([[1], 2], [[1, 2]]),
    "dictionaries": ({"a": 1}, {"a": 2}),
    "a dictionary and a list": ({"a": 1}, ["dict", [("a", 1)]]),
    "sets": ({1, 2}, {1, 3}),
    "tensors": (torch.tensor([1.0]), torch.tensor([1.0000001])),
    "types of tensors": (torch.zeros(1), torch.zeros(1, dtype=torch.int32)),
    "shapes": (torch.zeros(2, 3), torch.zeros(3, 2)),
    "sparse tensors": (torch.eye(2).to_sparse(), (2 * torch.eye(2)).to_sparse()),
    "arrays": (np.array([1.0]), np.array([2.0])),
    "arrays of objects": (np.array([[1], 2], dtype=object), np.array([[3], 2], dtype=object)),
    "types": (torch.float32, torch.float64),
    "enumerations": (Colour.RED, Colour.BLUE),
    "patterns": (re.compile("a"), re.compile("b")),
    "paths": (Path("a"), Path("b")),
    "slices": (slice(1), slice(2)),
    "objects": (Plain(1), Plain(2)),
    "objects with slots": (Slotted(1), Slotted(2)),
    "dataclasses": (Listed([1]), Listed([2])),
    "tensors inside": (Plain({"a": [torch.zeros(1)]}), Plain({"a": [torch.ones(1)]})),
    "generators": (torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)),
    "modules": (Module(1.0), Module(2.0)),
    "layers": (nn.Dropout(0.1), nn.Dropout(0.2)),
    "parts": (nn.Sequential(nn.ReLU(), nn.Tanh()), nn.Sequential(nn.Tanh(), nn.ReLU())),
    "graphs": (torch.fx.symbolic_trace(nn.ReLU()), torch.fx.symbolic_trace(nn.Tanh())),
    "code": (lambda x: x + 1, lambda x: x - 1),
    "constants": (lambda x: x + 1, lambda x: x + 2),
    "names": (lambda x: x.real, lambda x: x.imag),
    "functions inside": (nested(1), nested(2)),
    "closures": (hidden(1), hidden(2)),
    "defaults": (other_default(1), other_default(2)),
    "keyword defaults": (keyword_default(1), keyword_default(2)),
    "functions of others": (normalised, relu),
    "library's functions": (nn.functional.relu, nn.functional.gelu),
    "builtin functions": (torch.relu, torch.tanh),
    "builtin methods": ("a".join, "b".join),
    "universal functions": (np.sin, np.cos),
    "partial arguments": (functools.partial(hidden, 1), functools.partial(hidden, 2)),
    "partial keywords": (functools.partial(hidden, value=1), functools.partial(hidden, value=2)),
    "methods": (Plain(1).method, Plain(2).method),
    "caches": (remembering, forgetting),
    "classes": (Plain, Slotted),
    "library's classes": (nn.ReLU, nn.Tanh),
    "python's modules": (re, os),
    "recursion": (even, odd),
    "globals of functions inside": tuple(
        defined(f"LEVEL = {n}\ndef Own(x): return (lambda y: y + LEVEL)(x)") for n in (1, 2)
    ),
    "own score": (Own(), Own(2.0)),
    "a try": (defined("def Own(x):\n try:\n  return 1\n except KeyError:\n  pass"), defined("def Own(x): return 1")),
}


@each("name", PAIRS)
def test_things_that_differ_are_told_apart(name):
    one, other = PAIRS[name]
    assert identity(one) == identity(one)
    assert identity(one) != identity(other)


@each("name", [name for name in PAIRS if name not in ("generators", "weak references", "parametrisations")])
def test_identities_survive_being_pickled(name):
    for thing in PAIRS[name]:
        assert identity(cloudpickle.loads(cloudpickle.dumps(thing))) == identity(thing)


@each("thing", [Own(), Own, Plain(1), hidden(2), even, count_down, Listed([1]), Colour.RED, nested(1)])
def test_identities_survive_being_pickled_with_their_code(thing):
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    try:
        payload = Packer().pack(thing)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    assert len(payload.content) > 300 or isinstance(thing, Enum)
    assert identity(Unpacker(str.encode).unpack(payload)) == identity(thing)


def identities() -> list[str]:
    return [identity(thing) for pair in PAIRS.values() for thing in pair]


@pytest.mark.slow
def test_identities_are_the_same_in_every_process():
    path = os.pathsep.join([str(Path(suture.__file__).parents[1]), str(TESTS), str(TESTS / "common")])
    done = subprocess.run(
        [sys.executable, "-c", "import test_keys; print(*test_keys.identities())"],
        env=os.environ | {"PYTHONHASHSEED": "3", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == identities(), done.stderr


def test_what_does_the_same_is_the_same():
    one, other = Plain(1), Plain(1)
    assert one.costly == "1!"
    assert identity(one) == identity(other)
    assert identity(functools.partial(hidden, a=1, b=2)) == identity(functools.partial(hidden, b=2, a=1))
    assert identity(torch.eye(3)[:, :2]) == identity(torch.eye(3)[:, :2].contiguous())
    assert identity(np.float64(0.5)) == identity(0.5)
    assert identity(np.complex128(0.5j)) == identity(0.5j)
    assert identity((1, 2)) == identity([1, 2])
    before = identity(remembering)
    remembering(3)
    assert identity(remembering) == before
    first, second = Plain(1), Plain(1)
    first.a, first.b = 1, 2
    second.b, second.a = 2, 1
    assert identity(first) == identity(second)


def test_a_global_counts_only_where_it_is_read(monkeypatch):
    def reads(x):
        return x + LEVEL

    def has_one_of_that_name(x):
        return x.LEVEL

    before = identity(reads), identity(has_one_of_that_name)
    monkeypatch.setattr(sys.modules[__name__], "LEVEL", 5)
    assert identity(reads) != before[0]
    assert identity(has_one_of_that_name) == before[1]


LEVEL = 3


# ------------------------------------------------------------------------------------------------- the user's files

FORMS = (  # of importing {to}, which is {leaf} in {of}, and is {path} and {name} as seen from the importing package
    "import {to}",
    "import {to} as other",
    "from {of} import {leaf}",
    "from {to} import value",
    "from {path} import {name}",
    "if len(__name__) < 0:\n    import {to}",
    "try:\n    import not_installed\nexcept ImportError:\n    from {to} import value as other",
    "def late():\n    from {path} import {name}\n    return {name}",
    "import importlib\ndef late():\n    return importlib.import_module('{to}')",
)
HOLDS = """
import functools, torch
value = 1

def function(x):
    return x + value

@torch.no_grad()
def wrapped(x):
    return x

class Holder:
    @functools.cached_property
    def factor(self):
        return 2
"""


class Package:
    """A package of the user's whose modules import one another at random, and which of its files the first reaches."""

    def __init__(self, folder: Path, name: str, chance: random.Random) -> None:
        self.folder, self.name = folder, name
        places = [chance.choice(["", "inner.", "inner.deep."]) for _ in range(6)]
        modules = [f"{name}.{place}m{i}" for i, place in enumerate(places)]
        imports = {
            module: [other for other in modules[i + 1 :] if chance.random() < 0.35] for i, module in enumerate(modules)
        }
        self.first = modules[0]
        for package in ("", ".inner", ".inner.deep"):
            self.write(name + package, "", "/__init__.py")
        for module, others in imports.items():
            self.write(module, "".join(self._import(module, to, chance.choice(FORMS)) for to in others) + HOLDS)
        queue = [self.first]
        for module in queue:  # with the packages that run before a module does
            queue += [*imports.get(module, ()), *filter(None, [module.rpartition(".")[0]])]
        self.reached = {*queue}

    @staticmethod
    def _import(module: str, to: str, form: str) -> str:
        of, _, leaf = to.rpartition(".")
        above = module.split(".")[:-1]
        common = sum(one == other for one, other in zip(above, of.split("."), strict=False))
        path = "." * (len(above) - common + 1) + ".".join(of.split(".")[common:])
        return form.format(to=to, of=of, leaf=leaf, path=path, name=leaf) + "\n"

    def write(self, module: str, text: str, end: str = ".py") -> None:
        path = self.folder / (module.replace(".", "/") + end)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def files(self) -> dict[str, Path]:
        found = {".".join(path.relative_to(self.folder).with_suffix("").parts): path for path in self.paths()}
        return {module.removesuffix(".__init__"): path for module, path in found.items()}

    def paths(self) -> list[Path]:
        return sorted((self.folder / self.name).rglob("*.py"))

    def identities(self) -> list[str]:
        """Those of two functions, an object and the module, imported anew."""
        for module in [module for module in sys.modules if module.partition(".")[0] == self.name]:
            del sys.modules[module]
        importlib.invalidate_caches()
        found = importlib.import_module(self.first)
        return [identity(one) for one in (found.function, found.wrapped, found.Holder(), found)]


def test_an_edit_of_any_file_that_is_reached_changes_the_key_and_of_no_other(tmp_path, monkeypatch):
    """Compared with the imports that were planted."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    edits = 0
    for seed in range(10):
        made = Package(tmp_path, f"planted_{seed}", random.Random(seed))
        before = made.identities()
        for module, path in made.files().items():
            text = path.read_text()
            path.write_text(text + "# edited\n")
            changed = [one != other for one, other in zip(made.identities(), before, strict=True)]
            assert changed == [module in made.reached] * 4, (module, made.first, made.reached)
            path.write_text(text)
            edits += changed[0]
        assert made.identities() == before
    assert edits > 30


def imported(folder: Path, **texts: str) -> types.ModuleType:
    """The first of modules with these texts, imported anew with all others."""
    for name, text in texts.items():
        sys.modules.pop(name, None)
        (folder / f"{name}.py").write_text(text)
    importlib.invalidate_caches()
    return importlib.import_module(next(iter(texts)))


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


def test_a_star_imports_what_a_package_names_and_a_folder_may_be_one(folder):
    """``inner`` has no ``__init__.py``."""
    files = {
        "keyed_p/__init__.py": "",
        "keyed_p/first.py": "from keyed_p.star import *\nimport keyed_p.inner.b\ndef f(x): return x\n",
        "keyed_p/star/__init__.py": "__all__ = ['a']",
        "keyed_p/star/a.py": "",
        "keyed_p/inner/b.py": "",
        "keyed_p/inner/c.py": "",
    }
    found = {}
    for edited in [None, *files]:
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text + "\n# edited\n" * (name == edited))
        for name in [name for name in sys.modules if name.startswith("keyed_p")]:
            del sys.modules[name]
        importlib.invalidate_caches()
        found[edited] = identity(importlib.import_module("keyed_p.first").f)
    assert [name for name in files if found[name] == found[None]] == ["keyed_p/inner/c.py"]


def test_what_changed_in_a_module_since_counts_where_it_is_read(folder):
    first = imported(
        folder, keyed_a="import keyed_b\ndef f(x): return x * keyed_b.LEVEL\n", keyed_b="LEVEL = OTHER = 1"
    )
    before = identity(first.f)
    first.keyed_b.OTHER = 2
    assert identity(first.f) == before
    first.keyed_b.LEVEL = 2
    assert identity(first.f) != before


def test_a_file_that_was_edited_since_it_was_imported_is_refused_until_it_is_imported_again(folder):
    """The code that runs is the old one, whose text is gone."""
    first = imported(folder, keyed_c="import keyed_d\ndef f(x): return keyed_d.g(x)\n", keyed_d="def g(x): return x\n")
    known = identity(first.f)
    late = imported(folder, keyed_e="def f(x): return x\n")
    for name in ("keyed_d", "keyed_e"):
        (folder / f"{name}.py").write_text("def g(x): return x + 1\ndef f(x): return x + 1\n")
    assert identity(first.f) == known
    with pytest.raises(CodeError, match=r"keyed_e.py was edited after f was loaded from it.* reload the module"):
        identity(late.f)
    importlib.reload(first.keyed_d)
    assert identity(first.f) != known
    assert identity(importlib.reload(late).f)


def test_code_without_a_text_is_refused_and_with_one_counts_by_it():
    space = {"__name__": "__main__"}
    exec("def bare(x): return x", space)
    for thing in (space["bare"], Plain(space["bare"]), functools.partial(space["bare"], 1)):
        with pytest.raises(CodeError, match=r"the function bare of __main__ has no text in <string>.*into a file"):
            identity(thing)
    with pytest.raises(CodeError, match="the function bare"):
        network(preprocess=space["bare"])
    assert identity(defined("def Own(x): return x")) != identity(defined("def Own(x): return x  # edited"))


@pytest.mark.slow
def test_an_installed_package_counts_by_its_version(tmp_path, monkeypatch):
    found = []
    for i, (version, text) in enumerate([("1.0", "def g(x): return x"), ("1.0", "def g(x): return -x"), ("1.1", "")]):
        place = tmp_path / str(i) / "site-packages"
        (place / "keyed_lib").mkdir(parents=True)
        (place / "keyed_lib" / "__init__.py").write_text(text or "def g(x): return x")
        (place / "keyed_lib.dist-info").mkdir()
        (place / "keyed_lib.dist-info" / "METADATA").write_text(f"Name: keyed_lib\nVersion: {version}\n")
        (place / "keyed_lib.dist-info" / "top_level.txt").write_text("keyed_lib\n")
        monkeypatch.syspath_prepend(place)
        sys.modules.pop("keyed_lib", None)
        (tmp_path / "keyed_f.py").write_text("import keyed_lib\ndef f(x): return x\n")
        monkeypatch.syspath_prepend(tmp_path)
        user = imported(tmp_path, keyed_f="import keyed_lib\ndef f(x): return x\n")
        found.append([identity(user.keyed_lib.g), identity(user.keyed_lib), identity(user.f)])
    assert found[0] == found[1]
    assert not set(found[0]) & set(found[2])


def test_hooks_count_but_not_their_numbers():
    def hooked(before: int, hook: object) -> nn.Module:
        model = nn.Linear(2, 2)
        nn.init.ones_(model.weight)
        nn.init.ones_(model.bias)
        for _ in range(before):
            model.register_forward_hook(lambda *args: None).remove()
        if hook is not None:
            model.register_forward_hook(hook)
        return model

    def doubled(module, given, out):
        return out * 2

    assert identity(hooked(0, doubled)) == identity(hooked(3, doubled))
    assert identity(hooked(0, None)) == identity(hooked(3, None)) != identity(hooked(0, doubled))


def test_nothing_hangs_and_what_cannot_be_pickled_is_refused():
    class Odd:
        def __repr__(self):
            return "always the same"

        def __reduce_ex__(self, protocol):
            raise TypeError("no")

    loop: list[object] = [1]
    loop.append(loop)
    tied = Plain(None)
    tied.value = [tied, Plain(tied)]
    wide: object = 1
    for _ in range(60):  # 2⁶⁰ ways through it
        wide = [wide, wide]
    for thing in (loop, tied, wide, open, iter([1]), types.SimpleNamespace(a=1), Plain(threading.Lock())):
        assert identity(thing) == identity(thing)
    for thing in (Odd(), [Odd()], sys.stdout, iter(sys.stdout), (n for n in [1])):
        with pytest.raises(CodeError, match=r"cannot be pickled .*, so it cannot be identified; make it inside"):
            identity(thing)
    assert identity(iter([1])) != identity(iter([2]))


def test_a_cell_that_is_not_filled_yet():
    def made():
        def reads():
            return later

        before = identity(reads)
        later = 1
        return before, identity(reads)

    before, after = made()
    assert before != after


@given(
    st.recursive(
        st.none() | st.integers() | st.floats() | st.text(), lambda t: st.lists(t) | st.dictionaries(st.text(), t)
    )
)
def test_any_plain_values_survive_a_copy(value):
    assert identity(cloudpickle.loads(cloudpickle.dumps(value))) == identity(value)


@given(st.lists(st.integers() | st.text(), unique_by=repr, min_size=2), st.randoms())
def test_the_order_of_a_set_is_nothing_and_of_a_list_everything(values, chance):
    shuffled = list(values)
    chance.shuffle(shuffled)
    assert identity(set(values)) == identity(set(shuffled))
    assert (identity(values) == identity(shuffled)) == (values == shuffled)


def test_a_seed_of_numpys_is_the_same_seed():
    assert digest("x", np.int64(1), [np.uint8(3)]) == digest("x", 1, [3]) != digest("x", 2, [3])


def test_a_field_that_came_later_is_no_part_of_a_key_at_its_default():
    """Recorded before ``DenseClassification`` and its scores knew where classes lie."""
    task = DenseClassification()
    assert identity(task).startswith("ba5b5942e3395b4b")
    assert identity(list(default_scores(task))).startswith("783f541302740756")
    assert len({identity(one) for one in (task, DenseClassification("first"), DenseClassification("last"))}) == 3
