"""The law of reproducibility: the same trial gives the same bits, whatever else is or was computed, and where.

Compared are scores, penalties, intervals, curves and the parameters of the stitch. One network has cuts whose tensors
are not contiguous, another is laid out in channels_last: there the bits of a product depend on how a tensor came about,
unless somebody sees to it.
"""

import copy
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from loops import each
from suture import Network, Samples, Seam, Trial, measure
from suture.common.processor import processor
from suture.common.seeds import undisturbed
from suture.core.activations.cache import Activations
from suture.core.stitches import Stitch
from suture.fits import Fit, Random, TaskLoss
from suture.measurement.trials import controls
from suture.measurement.trials.plans import Plan, curve
from suture_papers.networks.architectures import convnet
from trained import Hybrid, bits, convolutional, few_digits, hybrid, wrap

Bits = dict[str, dict[str, str]]
BACKENDS: Any = torch.backends
FIT = TaskLoss(steps=10, check=4, batch=48)


class Pooled(nn.Module):
    """A convolution reads maps of a single pixel, whose layout in memory their shape does not tell."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(4)
        self.narrow = nn.Linear(16, 12)
        self.wide = nn.Conv2d(12, 40, 1)
        self.head = nn.Linear(40, 10)

    def forward(self, x: Tensor) -> Tensor:
        vectors = self.narrow(self.pool(x).flatten(1))
        maps = vectors[:, None, None].permute(0, 3, 1, 2)
        return self.head(self.wide(maps).relu().flatten(1))


@dataclass(frozen=True)
class Dropping(Stitch):
    """A family that draws random numbers while it trains."""

    joins = "vectors"

    def accepts(self, sender, receiver):
        return len(sender) == len(receiver) == 1

    def build(self, sender, receiver):
        return nn.Sequential(nn.Dropout(0.5), nn.Linear(sender[0], receiver[0]))


def models() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {
        "A": hybrid(0),
        "B": hybrid(1),
        "C": copy.deepcopy(convolutional(0)).to(memory_format=torch.channels_last),
        "D": copy.deepcopy(convolutional(1)).to(memory_format=torch.channels_last),
        "P": Pooled(),
        "Q": Pooled(),
    }


SETTINGS: dict[str, Any] = {
    "data": few_digits(),
    "fit": FIT,
    "controls": (controls.shuffled_pairs,),
}


def plan_of(models: dict[str, nn.Module]) -> Plan:
    """Seams of every kind of tensor, with controls, and a stitch that is random in training."""
    a, b, c, d, p, q = (wrap(model, name) for name, model in models.items())
    plan = curve(a, b, at=("conv", "transpose_2", "hidden"), **SETTINGS)
    plan += curve(c, d, at=("stage1.conv", "pool"), **SETTINGS)
    plan += curve(p, q, at=("permute", "wide"), **SETTINGS)
    start = TaskLoss(start=Random(), steps=10, check=4, patience=None)
    return plan + curve(
        a, b, at=("hidden",), data=few_digits(), fit=start, stitch=Dropping(), controls=(controls.untrained_sender,)
    )


@cache
def plan() -> Plan:
    return plan_of(models())


@cache
def alone() -> Bits:
    """Every trial with activations of its own."""
    return {trial.key: bits(measure(trial)) for trial in plan()}


def together(trials: list[Trial] | Plan, cache: Activations) -> Bits:
    return {trial.key: bits(measure(trial, cache)) for trial in trials}


@pytest.mark.slow
def test_trials_differ_among_each_other():
    assert len({json.dumps(b, sort_keys=True) for b in alone().values()}) == len(alone()) == len(plan())


def test_some_tensors_at_cuts_are_not_contiguous():
    """Else the tests below would prove little."""
    images = few_digits().fit.images[:4]
    laid_out = {t.where: t.sender.upto(t.sender_cut)(images).is_contiguous() for t in plan() if not t.control}
    assert not all(laid_out.values())
    assert any(laid_out.values())


@pytest.mark.slow
@each("budget", [0, 100_000, 2**30], ids=["nothing kept", "some evicted", "everything kept"])
def test_among_others_as_alone(budget):
    assert together(plan(), Activations(budget)) == alone()


@pytest.mark.slow
@each("seed", [0, 1], few=1)
def test_in_any_order(seed):
    shuffled = list(plan())
    random.Random(seed).shuffle(shuffled)
    assert together(shuffled, Activations(400_000)) == alone()


@pytest.mark.slow
def test_from_an_earlier_cut_as_from_the_images():
    cache = Activations()
    for trial in plan():
        for network in (trial.sender, trial.receiver):
            for samples in (trial.fit_data, trial.validation_data, trial.score_data):
                cache.at(network, network.cuts[0], samples)
                cache.at(network, network.cuts[len(network.cuts) // 2], samples)
    assert together(plan(), cache) == alone()


@each(("channels", "kernel"), [(1, 3), (3, 1)])
def test_whatever_the_layout_of_the_images(channels, kernel):
    """Samples are what their content is (``fingerprint``), and so are the numbers."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(channels, 16, kernel), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))
    pixels_last = torch.rand(300, 8, 8, channels).permute(0, 3, 1, 2)
    usual = torch.empty(300, channels, 8, 8).copy_(pixels_last)
    model(usual)
    results = []
    for images in (usual, pixels_last):
        samples = Samples("colours", images, torch.arange(300) % 10, tuple("0123456789"))
        network = Network(model, example=usual[:4], name="colours")
        trial = Trial(Seam.at(network, network, "0"), samples, samples, samples, fit=FIT)
        results.append((trial.key, bits(measure(trial))))
    assert usual.stride() != pixels_last.stride()
    assert results[0] == results[1]


@each("threads", [1, 2], few=1)
def test_whatever_the_number_of_threads_outside(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert together(plan(), Activations()) == alone()
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_whatever_the_state_of_the_global_generators_which_stays():
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
        assert together(plan(), Activations()) == alone()
        assert torch.equal(torch.get_rng_state(), states[0])
        assert np.random.get_state()[1].tolist() == states[1]  # noqa: NPY002
        assert random.getstate() == states[2]


def _new_precision(backend: Any, kind: str = "matmul") -> Callable[[], AbstractContextManager[None]]:
    @contextmanager
    def set_up() -> Iterator[None]:
        product = getattr(backend, kind)
        before = product.fp32_precision
        product.fp32_precision = "bf16" if backend is torch.backends.mkldnn else "tf32"
        try:
            yield
        finally:
            product.fp32_precision = before

    return set_up


@contextmanager
def _legacy_precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _switch(read: Callable[[], Any], put: Callable[[Any], object], value: object) -> Callable[[], Any]:
    @contextmanager
    def set_up() -> Iterator[None]:
        before = read()
        put(value)
        try:
            yield
            assert read() == value, "it was not put back"
        finally:
            put(before)

    return set_up


def _flushes() -> bool:
    return sys.float_info.min / 2 == 0


SWITCHES = {  # of the whole process, which torch reads on the CPU
    "without oneDNN": _switch(lambda: BACKENDS.mkldnn.enabled, partial(setattr, BACKENDS.mkldnn, "enabled"), False),
    "without flash attention": _switch(BACKENDS.cuda.flash_sdp_enabled, BACKENDS.cuda.enable_flash_sdp, False),
    "without the fast path": _switch(BACKENDS.mha.get_fastpath_enabled, BACKENDS.mha.set_fastpath_enabled, False),
    "without small numbers": _switch(_flushes, torch.set_flush_denormal, True),
    "with deterministic algorithms": _switch(torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 1),
}
SURROUNDINGS = {
    "no oneDNN": SWITCHES["without oneDNN"],
    "products in bfloat16": _legacy_precision,
    "products in bfloat16, by the newer setting": _new_precision(torch.backends.mkldnn),
    "convolutions in bfloat16": _new_precision(torch.backends.mkldnn, "conv"),
    "products on a GPU in TF32": _new_precision(torch.backends.cuda),
    "convolutions on a GPU in TF32": _new_precision(torch.backends.cudnn, "conv"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
}


@each("around", SURROUNDINGS.values(), ids=SURROUNDINGS, few=2)
def test_whatever_the_program_around_has_set(around):
    """Networks made there, too, are the same."""
    with around():
        torch.manual_seed(0)
        a, b = (wrap(hybrid(seed), name) for seed, name in enumerate("AB"))
        found = together(curve(a, b, at=("conv",), **SETTINGS)[:2], Activations())
    assert found == {trial.key: alone()[trial.key] for trial in plan()[:2]}


def computed() -> dict[str, list[float]]:
    """Outputs and gradients of layers that have several kernels on the CPU, and of a product of small numbers."""
    torch.manual_seed(0)
    x, found = torch.rand(16, 3, 16, 16), {}
    tokens = x.flatten(2).transpose(1, 2).repeat(1, 1, 8)[..., :16]
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True).eval()
    layers = {"conv": nn.Conv2d(3, 24, 3), "lstm": nn.LSTM(16, 12, batch_first=True), "product": nn.Linear(16, 16)}
    for name, made in layers.items():
        out = made(x if name == "conv" else tokens)
        out = out[0] if isinstance(out, tuple) else out
        out.sin().sum().backward()
        found[name] = [*out.flatten().tolist(), *next(made.parameters()).grad.flatten().tolist()]
    with torch.no_grad():
        heads = tokens.unflatten(-1, (4, 4)).transpose(1, 2)
        found["encoder"] = layer(tokens).flatten().tolist()
        found["attention"] = nn.functional.scaled_dot_product_attention(heads, heads, heads).flatten().tolist()
        found["small"] = (torch.full((3,), 1e-30) * 1e-12).tolist()
    return found


def test_every_switch_of_the_process_is_as_always_within_and_put_back_after():
    with undisturbed():
        usual = computed()
    moved: set[str] = set()
    for name, around in SWITCHES.items():
        with around():
            disturbed = computed()
            with undisturbed():
                assert computed() == usual, name
        moved |= {kind for kind in usual if disturbed[kind] != usual[kind]}
    assert moved >= {"conv", "lstm", "encoder", "attention", "small"}, "else this would prove little"


def test_what_no_switch_undoes_is_named_with_the_processor(monkeypatch):
    monkeypatch.delenv("MKL_CBWR", raising=False)
    plain = processor.__wrapped__()
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert processor.__wrapped__() == plain.removesuffix(")") + ", MKL_CBWR=COMPATIBLE)"


STATES = """
import random, tempfile
import numpy as np, torch

def states():
    return random.getstate(), str(np.random.get_state(legacy=False)), torch.get_rng_state().tolist()

before = states()
import suture
from torch import nn
data = suture.load_data("digits").limited(fit=300, score=200)
assert states() == before, "load_data"
made = []
for name in "ab":
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
    before = states()
    made.append(suture.Network(model, example=data.example, name=name))
    assert states() == before, "Network"
plan = suture.curve(*made, data=data, at=["1"], fit=suture.fits.Quick())
with tempfile.TemporaryDirectory() as folder:
    for call in (
        lambda: suture.stitch(*made, at="1", data=data, fit=suture.fits.Quick()),
        lambda: suture.run(plan, store=folder),
        lambda: suture.compare(*made, data=data),
    ):
        call()
        assert states() == before, call.__code__.co_firstlineno
print("stay")
"""


@pytest.mark.slow
def test_what_the_user_calls_leaves_every_global_generator_alone():
    """In a new process, because a library may draw when it is first imported."""
    done = subprocess.run([sys.executable, "-c", STATES], capture_output=True, text=True, check=False)
    assert done.stdout == "stay\n", done.stderr


def test_whatever_device_the_program_around_has_chosen():
    with torch.device("meta"):
        found = together(plan()[:2], Activations())
        again = plan()[0].receiver.untrained(5).state_digest()
    assert found == {trial.key: alone()[trial.key] for trial in plan()[:2]}
    assert again == wrap(hybrid(1), "B").untrained(5).state_digest()


def test_a_trial_that_fails_leaves_threads_and_generators_alone():
    @dataclass(frozen=True)
    class Breaks(Fit):
        def fit(self, problem, stitch):
            torch.rand(3)
            raise RuntimeError("broken")

    trial = replace(plan()[0], fit=Breaks())
    before, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(2)
    try:
        with pytest.raises(RuntimeError, match="broken"):
            measure(trial)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert torch.equal(torch.get_rng_state(), state)


# --- in another process -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_in_another_process(tmp_path):
    """Another process with another hash seed and other threads loads the weights and measures in reverse."""
    for name, model in models().items():
        save_file({k: v.contiguous() for k, v in model.state_dict().items()}, tmp_path / f"{name}.safetensors")
    here = Path(__file__)
    paths = os.pathsep.join([str(here.parent), str(here.parent.parent), *sys.path])
    environment = os.environ | {"PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "2", "PYTHONPATH": paths}
    code = f"import {here.stem}; {here.stem}.elsewhere({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "bits.json").read_text()) == alone()


def elsewhere(folder: str) -> None:
    """What the other process does."""
    loaded: dict[str, nn.Module] = {}
    for name, build in zip("ABCDPQ", (Hybrid, Hybrid, _narrow, _narrow, Pooled, Pooled), strict=True):
        model = build().eval()
        model.load_state_dict(load_file(Path(folder) / f"{name}.safetensors"))
        loaded[name] = model.to(memory_format=torch.channels_last) if name in "CD" else model
    torch.rand(5)
    found = together(list(reversed(plan_of(loaded))), Activations(400_000))
    (Path(folder) / "bits.json").write_text(json.dumps(found))


def _narrow() -> nn.Module:
    return convnet(width=4)


def test_convolutions_on_a_gpu_are_exact_and_the_same_each_time(monkeypatch):
    """PyTorch takes TF32 and the fastest algorithm unless told otherwise, and after us it does again."""
    on_gpu = torch.backends.cudnn
    monkeypatch.setattr(on_gpu, "allow_tf32", True)  # as at first, whatever ran before in this process
    monkeypatch.setattr(on_gpu, "benchmark", True)
    before = on_gpu.conv.fp32_precision, on_gpu.deterministic
    with undisturbed():
        assert (on_gpu.conv.fp32_precision, on_gpu.rnn.fp32_precision) == ("ieee", "ieee")
        assert (on_gpu.allow_tf32, on_gpu.deterministic, on_gpu.benchmark) == (False, True, False)
    assert (on_gpu.conv.fp32_precision, on_gpu.deterministic) == before
    assert (on_gpu.allow_tf32, on_gpu.benchmark) == (True, True)
