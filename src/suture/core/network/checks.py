"""Probes: a few images on which a model shows that it can be measured at all."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from suture.common.errors import DataError, NetworkError
from suture.core.network.segments import have_same_bits
from suture.data.preprocess import are_token_ids

_BATCH_OF_ONE = "Expected more than 1 value per channel"  #: as torch says it of a BatchNorm that uses the batch's


def check_model(model: object) -> None:
    """Raise ``NetworkError``, with what to give instead, for what is no model."""
    if isinstance(model, nn.Module):
        return
    remedy = "give a torch.nn.Module that maps images to outputs"
    if isinstance(model, type):
        raise NetworkError(f"the model is the class {model.__name__}; make one of it: {model.__name__}(…)")
    if isinstance(model, Mapping):
        remedy = "it looks like weights alone: load them, model.load_state_dict(…), and give that model"
    raise NetworkError(f"the model is a {type(model).__name__}; {remedy}")


def make_probes(example: Tensor) -> Tensor:
    """Three raw images, or sequences of token ids, from the example, repeated with a shift where it has too few."""
    is_tensor = isinstance(example, Tensor)
    if not is_tensor or not (example.ndim == 4 or are_token_ids(example)) or len(example) == 0:
        got = f"{example.dtype} of shape {tuple(example.shape)}" if is_tensor else f"a {type(example).__name__}"
        raise DataError(
            f"the example must be a few raw images, a tensor of shape (n, C, H, W) with n ≥ 1, or as many sequences of "
            f"token ids, (n, T) int64, and is {got}; give data.example, or the first images of a tensor"
        )
    if example.is_floating_point() and not example.isfinite().all():
        raise DataError("the example has values that are not finite; give raw images, such as data.example")
    return torch.stack([example[i % len(example)].roll(i // len(example), dims=-1) for i in range(3)])


def check_outputs(model: nn.Module, probes: Sequence[Tensor], name: str) -> Tensor:
    """Return the outputs for the probes; refuse those that are no row per image, not reproducible, or mix images."""
    batches = [probes[2], probes[2], *(probes[2][i : i + 1] for i in range(3))]
    try:
        three, again, *alone = (model(batch.clone()) for batch in batches)
    except Exception as error:
        shape = tuple(probes[0].shape[1:])
        what = (
            f"sequences of {shape[0]} token ids"
            if are_token_ids(probes[0])
            else f"preprocessed images of shape {shape}"
        )
        why = (_without_statistics(model) if _BATCH_OF_ONE in str(error) else "") or str(error)
        raise NetworkError(f"{name} does not run on {what}: {why}") from error
    for out, batch in zip((three, again, *alone), batches, strict=True):
        _check_rows(out, len(batch), name)
    if not have_same_bits(three, again):
        raise NetworkError(_explain_unsteady(model, probes[2], name))
    finite = bool(three.isfinite().all())  # if not, the cut where it begins will be named
    if finite and not are_close(torch.cat(alone), three, 1e-2):
        why = _without_statistics(model)
        raise NetworkError(
            f"the output of {name} for one image depends on the other images of its batch{why and f': {why}'}"
        )
    outputs: Tensor = three
    return outputs


def are_probabilities(outputs: Tensor) -> bool:
    """Whether rows are shares of several classes; rounded to 16 bits they add up to 1 within a hundredth."""
    whole = (outputs.sum(dim=1) - 1).abs() < 0.01
    return outputs.shape[1] > 1 and bool((whole & (outputs >= 0).all(dim=1)).all())


def are_close(one: Tensor, other: Tensor, share: float) -> bool:
    """Whether two are of one type, and differ by no more than a share of what is there."""
    if one.shape != other.shape or one.dtype != other.dtype or not one.is_floating_point():
        return torch.equal(one, other)
    largest = float(other.nan_to_num(0.0, 0.0, 0.0).abs().max()) if other.numel() else 0.0
    return torch.allclose(one, other, rtol=share, atol=share * largest, equal_nan=True)


def _check_rows(out: object, n: int, name: str) -> None:
    got = f"a {type(out).__name__}"
    if isinstance(out, Tensor):
        if out.ndim == 2 and len(out) == n and out.is_floating_point():
            return
        got = f"{out.dtype} of shape {tuple(out.shape)}"
    raise NetworkError(
        f"{name} must map n images to one tensor of floats (n, outputs), but a batch of {n} gave {got}; wrap it in a "
        "module that returns that tensor"
    )


def _explain_unsteady(model: nn.Module, batch: Tensor, name: str) -> str:
    """Say why the same images gave two outputs: chance, or something that the forward pass changes."""
    outputs = []
    for _ in range(2):
        torch.default_generator.manual_seed(0)  # the caller keeps it
        outputs.append(model(batch.clone()))
    if have_same_bits(*outputs):
        return f"{name} is random in evaluation mode: the same images gave two outputs"
    return (
        f"{name} gives another output for the same images each time, whatever the seed: its forward pass draws at "
        "random on its own, or changes something that it reads, such as a counter; leave that out in evaluation mode"
    )


def _without_statistics(model: nn.Module) -> str:
    for path, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.running_mean is None:
            return f"'{path}' keeps no running statistics, so it normalises by whatever else is in the batch"
    return ""
