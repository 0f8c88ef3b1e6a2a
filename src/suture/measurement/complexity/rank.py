"""The rank of representations, and where smith2024 takes it: at the receiver's first layer after the stitch.

The *numerical rank* counts the singular values of the sample covariance that exceed 1e-3 of the largest (smith2024,
appendix B.2.1, after Masarczyk et al. 2023); the *effective rank* is the exponential of the entropy of the singular
values of the centred matrix, made to sum to 1 (Roy & Vetterli 2007, section 2), between 1 and the rank. Neither depends
on scale or on a rotation of samples or features. Two senders whose stitched ranks differ are not the same to the
receiver; two whose ranks agree may still differ.

The first layer is the first convolution or linear map (attention counts as one) that runs after the cut; its output is
taken before BatchNorm or activation. Maps become samples as ``suture.indices`` reads them: the paper flattens
them, so that an image is a sample (its code then draws 8,000 features at random, unseeded; here all count).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from suture.common.errors import DataError, NetworkError
from suture.common.hashing import keyed_as
from suture.core.activations.cache import CHUNK
from suture.measurement.complexity.base import Complexity, Subject
from suture.measurement.indices.base import Layer, SamplesAs

_LAYERS = ("linear", *(f"conv{t}{n}d" for n in (1, 2, 3) for t in ("", "_transpose")))
_ATTENTION = "multi_head_attention_forward"
_ROUNDING = float(torch.finfo(torch.float64).eps)


def numerical_rank(representations: Tensor, threshold: float = 1e-3, samples_as: SamplesAs = "flattened") -> int:
    """Count the singular values of the sample covariance above ``threshold`` times the largest.

    ``representations`` are ``(images, …)``; 0 if nothing varies. Raises ``DataError`` if they are no matrix of
    finite floats, or the threshold is not in [0, 1).
    """
    _check(threshold)
    values = _variances(representations, samples_as)
    return int((values > threshold * values[-1]).sum())


def effective_rank(representations: Tensor, samples_as: SamplesAs = "flattened") -> float:
    """Return ``exp(−Σ p log p)``, ``p = σ / Σσ``, σ the singular values of the centred matrix (Roy & Vetterli 2007).

    ``representations`` are ``(images, …)``; 0 if nothing varies. Raises ``DataError`` if they are no matrix of
    finite floats.
    """
    values = _variances(representations, samples_as).sqrt()
    total = float(values.sum())
    return exp(float(torch.special.entr(values / total).sum())) if total > 0 else 0.0


def at_first_layer(suffix: nn.Module, at_cut: Tensor) -> Tensor:
    """Return the output ``(n, …)``, on the CPU, of the first layer with weights, given the tensor at a cut ``(n, …)``.

    ``suffix`` is ``receiver.after(cut)`` and ``at_cut`` what the stitch gives it, or the receiver's own activations,
    for the baseline. Maps have their channels first, tokens last. Raises ``NetworkError`` if there is no such layer.
    """
    device = next((p.device for p in suffix.parameters()), at_cut.device)
    with torch.no_grad():
        return torch.cat([_first(suffix, part.to(device)) for part in torch.split(at_cut, CHUNK)])


@keyed_as("Rank")
class _Rank(Complexity):
    """The rank of what a stitched network's receiver makes of the stitch, or a share of the largest there could be."""

    unit: ClassVar[str] = "raw"

    def check(self, subject: Subject) -> None:
        """Raise ``DataError`` unless there is a stitch."""
        if subject.joined is None:
            raise DataError(
                f"the {self.name} of {subject.name}: it is taken after a stitch, and this is no stitched network; "
                f"measure one, or call {self.name.replace(' ', '_')} with activations"
            )

    def _share(self, rank: float, representations: Tensor) -> float:
        layer = Layer("the first layer", representations, self.samples_as)  # type: ignore[arg-type]
        return rank / min(layer.samples, layer.features) if self.normalised else rank


@keyed_as("NumericalRank")
@final
@dataclass(frozen=True)
class NumericalRank(_Rank):
    """The numerical rank at the receiver's first layer after the stitch (smith2024, figure 1c).

    Normalised, its share of the smaller of samples and features. Raises ``DataError`` for a threshold outside [0, 1),
    or of a network that has no stitch.
    """

    threshold: float = 1e-3
    samples_as: SamplesAs = "flattened"
    normalised: bool = False

    name: ClassVar[str] = "numerical rank"

    def __post_init__(self) -> None:
        _check(self.threshold)

    def of(self, subject: Subject) -> float:
        """Return the rank, or its share."""
        found = _receive(subject)
        return self._share(numerical_rank(found, self.threshold, self.samples_as), found)


@keyed_as("EffectiveRank")
@final
@dataclass(frozen=True)
class EffectiveRank(_Rank):
    """The effective rank at the receiver's first layer after the stitch.

    Normalised, its share of the smaller of samples and features. Raises ``DataError`` of a network without a stitch.
    """

    samples_as: SamplesAs = "flattened"
    normalised: bool = False

    name: ClassVar[str] = "effective rank"

    def of(self, subject: Subject) -> float:
        """Return the rank, or its share."""
        found = _receive(subject)
        return self._share(effective_rank(found, self.samples_as), found)


def _check(threshold: float) -> None:
    if not 0 <= threshold < 1:
        raise DataError(f"threshold={threshold}: the share of the largest singular value is in [0, 1)")


def _receive(subject: Subject) -> Tensor:
    """Return what the receiver's first layer after the stitch gives, ``(n, …)``."""
    joined = subject.joined
    assert joined is not None
    with torch.no_grad():
        images = (subject.samples.images[part].to(subject.device) for part in subject.batches(CHUNK))
        return torch.cat([at_first_layer(joined.suffix, joined.represent(each)) for each in images])


def _variances(representations: Tensor, samples_as: SamplesAs) -> Tensor:
    """Return the eigenvalues of the sample covariance, but for one factor, from the smallest; what is rounding is 0."""
    layer = Layer("the representations", representations, samples_as)
    parts = layer.centred_rows(torch.float64) if layer.features <= layer.samples else None
    if parts is not None:
        products = (part.T @ part for part in parts)
    else:
        products = (part @ part.T for part, _ in layer.columns(torch.float64))
    gram = next(products)
    for product in products:
        gram += product
    values: Tensor = torch.linalg.eigvalsh(gram)
    return torch.where(values > max(layer.samples, layer.features) * _ROUNDING * values[-1], values, 0.0)


class _Reached(Exception):
    """The first layer has run; the argument is its output."""


class _UntilLayer(TorchFunctionMode):
    """Runs everything up to the first layer, whichever way it is called, and no further."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = _name(func)
        if name == _ATTENTION:
            raise _Reached(out[0].transpose(0, 1), -1)
        if name in _LAYERS:
            raise _Reached(out, -1 if name == "linear" else 1)
        return out


def _name(func: Callable[..., Any]) -> str:
    if isinstance(func, torch._ops.OpOverload):
        return func._schema.name.partition("::")[2]
    return getattr(func, "__name__", "")


def _first(suffix: nn.Module, at_cut: Tensor) -> Tensor:
    try:
        with _UntilLayer():
            suffix(at_cut)
    except _Reached as reached:
        out, axis = reached.args
        if len(out) != len(at_cut):  # parts of an image, such as windows, one after another
            whole = out if axis == -1 else out.movedim(1, -1)
            out = whole.reshape(len(at_cut), -1, whole.shape[-1])
        return out.cpu()  # type: ignore[no-any-return]
    raise NetworkError(
        "no convolution or linear layer follows the cut, so no rank can be taken there; take an earlier cut"
    )
