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

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import exp
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from suture.common.errors import DataError, NetworkError
from suture.extend import CHUNK, keyed_as
from suture.measurement.indices import Layer, SamplesAs
from suture_papers.complexity.base import Complexity, Subject

_LAYERS = ("linear", *(f"conv{t}{n}d" for n in (1, 2, 3) for t in ("", "_transpose")))
_ATTENTION = "multi_head_attention_forward"
_ROUNDING = float(torch.finfo(torch.float64).eps)


def numerical_rank(representations: Tensor, threshold: float = 1e-3, samples_as: SamplesAs = "flattened") -> int:
    """Count the singular values of the sample covariance above ``threshold`` times the largest.

    ``representations`` are ``(images, …)``; 0 if nothing varies. Raises ``DataError`` if they are not a matrix of
    finite floats, or the threshold is not in [0, 1).
    """
    _check(threshold)
    values = _variances(representations, samples_as)
    return int((values > threshold * values[-1]).sum())


def effective_rank(representations: Tensor, samples_as: SamplesAs = "flattened") -> float:
    """Return ``exp(−Σ p log p)``, ``p = σ / Σσ``, σ the singular values of the centred matrix (Roy & Vetterli 2007).

    ``representations`` are ``(images, …)``; 0 if nothing varies. Raises ``DataError`` if they are not a matrix of
    finite floats.
    """
    values = _variances(representations, samples_as).sqrt()
    total = float(values.sum())
    return exp(float(torch.special.entr(values / total).sum())) if total > 0 else 0.0


def at_first_layer(suffix: nn.Module, at_cut: Tensor) -> Tensor:
    """Return the output ``(n, …)``, on the CPU, of the first layer with weights, given the tensor at a cut ``(n, …)``.

    ``suffix`` is ``receiver.after(cut)`` and ``at_cut`` the stitch's output, or the receiver's own activations,
    for the baseline. Maps have their channels first, tokens last. Raises ``NetworkError`` if there is no such layer.
    """
    device = next((p.device for p in suffix.parameters()), at_cut.device)
    with torch.no_grad():
        return torch.cat([_first(suffix, part.to(device)) for part in torch.split(at_cut, CHUNK)])


@keyed_as("Rank")
class _Rank(Complexity):
    """A rank of the receiver's first layer's outputs after the stitch, or its share of the largest possible one."""

    unit: ClassVar[str] = "raw"
    after_stitch: ClassVar[bool] = True
    samples_as: SamplesAs

    @abstractmethod
    def rank(self, representations: Tensor) -> float:
        """Return the rank of the layer's outputs, ``(n, …)``."""

    def of(self, subject: Subject) -> float:
        """Return the rank, or its share."""
        joined = subject.joined
        assert joined is not None
        with torch.no_grad():
            images = (subject.samples.images[part].to(subject.device) for part in subject.batches(CHUNK))
            found = torch.cat([at_first_layer(joined.suffix, joined.represent(each)) for each in images])
        layer, rank = Layer("the first layer", found, self.samples_as), self.rank(found)
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

    def rank(self, representations: Tensor) -> float:
        """Return the numerical rank."""
        return numerical_rank(representations, self.threshold, self.samples_as)


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

    def rank(self, representations: Tensor) -> float:
        """Return the effective rank."""
        return effective_rank(representations, self.samples_as)


def _check(threshold: float) -> None:
    if not 0 <= threshold < 1:
        raise DataError(f"threshold={threshold}: the share of the largest singular value is in [0, 1)")


def _variances(representations: Tensor, samples_as: SamplesAs) -> Tensor:
    """Return the eigenvalues of the sample covariance, up to one factor, from the smallest; rounding errors are 0."""
    layer = Layer("the representations", representations, samples_as)
    size = min(layer.samples, layer.features)
    gram = torch.zeros(size, size, dtype=torch.float64, device=representations.device)
    if layer.features <= layer.samples:
        for rows in layer.centred_rows(torch.float64):
            gram += rows.T @ rows
    else:
        for columns, _ in layer.columns(torch.float64):
            gram += columns @ columns.T
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


RANKS: tuple[Complexity, ...] = (
    *(NumericalRank(), NumericalRank(normalised=True)),
    *(EffectiveRank(), EffectiveRank(normalised=True)),
)  #: of stitched networks alone
