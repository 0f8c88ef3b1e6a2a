"""The stitched network that is delivered: one map in every mode, in every floating type, compiled and exported.

Evidence: the stitch as it was measured, applied by hand between prefix and suffix; moments taken by torch.
"""

import copy
from functools import cache

import pytest
import torch
from test_frozen import trial_of
from torch import Tensor, nn

from loops import each
from suture import Measurement, Stitched, load_stitched, measure
from suture.core.stitches import Conv
from suture.fits import LeastSquares
from trained import few_digits, hybrids

IMAGES = few_digits().score.images[:64]


@cache
def measured(family: Conv, cut: str = "conv") -> Measurement:
    return measure(trial_of(*hybrids(), cut, stitch=family, fit=LeastSquares()))


def by_hand(measurement: Measurement, x: Tensor = IMAGES) -> Tensor:
    """The outputs through the stitch as it was measured."""
    (sender, sent), (receiver, received) = measurement.trial.seam.sides
    with torch.no_grad():
        return receiver.after(received)(measurement.stitch(sender.upto(sent)(x)))


def off(out: Tensor, wanted: Tensor) -> float:
    out, wanted = out.detach().double(), wanted.detach().double()
    return float((out - wanted).abs().max() / wanted.abs().max())


@each("kernel", [1, 3])
def test_what_is_delivered_is_what_was_measured_in_every_mode(kernel, tmp_path):
    family = Conv(kernel=kernel)
    found = measured(family)
    stitched, wanted = found.stitched, by_hand(found)
    assert [type(module) for module in found.stitch.modules()].count(nn.BatchNorm2d) == 2, "what is measured stays"
    assert isinstance(stitched.stitch, nn.Conv2d) == (kernel == 1)
    assert not any(module.training for module in stitched.modules())
    before = copy.deepcopy(stitched.stitch.state_dict())
    for mode in (False, True):
        stitched.train(mode)
        assert stitched.training is stitched.stitch.training is mode
        assert off(stitched(IMAGES), wanted) < 1e-5
    assert all(torch.equal(before[name], value) for name, value in stitched.stitch.state_dict().items())
    again = load_stitched(found.save(tmp_path), *(network for network, _ in found.trial.seam.sides))
    assert torch.equal(again.train()(IMAGES), stitched(IMAGES))
    raw = Stitched(found.trial.seam, found.stitch, family)
    loaded = load_stitched(raw.save(tmp_path), *(network for network, _ in found.trial.seam.sides))
    assert torch.equal(loaded.train()(IMAGES), raw(IMAGES))


@each("kernel", [1, 3])
def test_norms_on_request_have_the_moments_of_what_passes(kernel):
    found = measured(Conv(kernel=kernel))
    normed = found.stitched.eval().with_norms(few_digits().fit.images)
    norms = [module for module in normed.stitch.modules() if isinstance(module, nn.BatchNorm2d)]
    passed = []
    for norm in norms:
        norm.register_forward_pre_hook(lambda _, given: passed.append(given[0]))
    assert off(normed(IMAGES), by_hand(found)) < 1e-4
    normed.train()
    passed.clear()
    with torch.no_grad():
        assert off(normed(few_digits().fit.images), by_hand(found, few_digits().fit.images)) < 2e-2
    for norm, x in zip(norms, passed, strict=True):
        kept, variance = norm.running_var, x.var((0, 2, 3))
        assert float((kept / variance - 1).abs().max()) < 1e-2


TYPES = {"half": (torch.float16, 1e-2), "bfloat16": (torch.bfloat16, 5e-2), "double": (torch.float64, 1e-5)}


@each("folded", [False, True])
def test_it_gives_the_same_answers_in_every_floating_type_and_under_autocast(folded):
    found = measured(Conv(), "drop")
    model = found.stitched.folded() if folded else found.stitched
    wanted = by_hand(found)
    assert off(model(IMAGES), wanted) < 1e-4
    for name, (dtype, share) in TYPES.items():
        made = getattr(copy.deepcopy(model), name)()
        for x in (IMAGES, IMAGES.to(dtype) if IMAGES.is_floating_point() else IMAGES):
            out = made(x)
            assert out.dtype == dtype
            assert off(out, wanted) < share, name
        assert off(made.float()(IMAGES), wanted) < share
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert off(model(IMAGES), wanted) < 5e-2
    model.half()
    assert not any(network.is_changed for network, _ in found.trial.seam.sides), "the networks are left as they are"
    found.__dict__.pop("stitched", None)


def _compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager", fullgraph=True)


def _exported(model: nn.Module) -> nn.Module:
    batch = torch.export.Dim.DYNAMIC
    return torch.export.export(model, (IMAGES[:4],), dynamic_shapes=({0: batch},)).module()


@pytest.mark.slow
@each("folded", [False, True])
@each("make", [_compiled, _exported])
def test_compiled_and_exported_it_gives_the_same_answers_for_batches_of_any_size(make, folded):
    found = measured(Conv(), "drop")
    made = make(found.stitched.folded() if folded else found.stitched)
    for n in (2, 9, 64):
        with torch.no_grad():
            assert off(made(IMAGES[:n]), by_hand(found)[:n]) < 1e-4


@pytest.mark.slow
@each("folded", [False, True])
def test_onnx_gives_the_same_answers(folded, tmp_path):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    found = measured(Conv(), "drop")
    model, path = found.stitched.folded() if folded else found.stitched, str(tmp_path / "stitched.onnx")
    torch.onnx.export(model, (IMAGES[:4],), path, dynamic_shapes=({0: torch.export.Dim.DYNAMIC},), dynamo=True)
    session = runtime.InferenceSession(path)
    (out,) = session.run(None, {session.get_inputs()[0].name: IMAGES.numpy()})
    assert off(torch.from_numpy(out), by_hand(found)) < 1e-4
