"""How large a network is: compressed, in parameters, in FLOPs. None of it needs more than an image."""

import gzip
from dataclasses import dataclass
from typing import ClassVar, final

from torch.utils.flop_counter import FlopCounterMode

from suture.common.hashing import keyed_as
from suture.core.network.network import attention_as_products
from suture.measurement.complexity.base import Complexity, Subject

LEVEL = 9  #: of gzip, fixed


@keyed_as("GzipSize")
@final
@dataclass(frozen=True)
class GzipSize(Complexity):
    """The size of the parameters once compressed by gzip, in bits; normalised, in bits per parameter.

    An upper bound of their Kolmogorov complexity (oxford2025, section 2.3). What is compressed are the parameters as
    little-endian float32, one tensor after another in the network's order, without names or shapes, at level 9 and
    without a time. Its length may differ by little between builds of zlib. Without parameters it is that of nothing.
    """

    normalised: bool = False

    name: ClassVar[str] = "gzip size"
    unit: ClassVar[str] = "bits"
    uses_samples: ClassVar[bool] = False

    def of(self, subject: Subject) -> float:
        """Return the size in bits."""
        tensors = (p.detach().float().cpu().contiguous().numpy() for p in subject.module.parameters())
        content = b"".join(tensor.astype("<f4").tobytes() for tensor in tensors)
        bits = 8.0 * len(gzip.compress(content, LEVEL, mtime=0))
        return bits / max(subject.count, 1) if self.normalised else bits


@keyed_as("Parameters")
@final
@dataclass(frozen=True)
class Parameters(Complexity):
    """The number of parameters: those of the prefix, of the stitch and of the suffix."""

    normalised: ClassVar[bool] = False  # type: ignore[misc]
    name: ClassVar[str] = "parameters"
    unit: ClassVar[str] = "raw"
    uses_samples: ClassVar[bool] = False

    def of(self, subject: Subject) -> float:
        """Return the number."""
        return float(subject.count)


@keyed_as("Flops")
@final
@dataclass(frozen=True)
class Flops(Complexity):
    """The FLOPs of one image, counted as those of cuts are (``network.flops``): a multiply-add is two."""

    normalised: ClassVar[bool] = False  # type: ignore[misc]
    name: ClassVar[str] = "flops"
    unit: ClassVar[str] = "raw"
    uses_samples: ClassVar[bool] = False

    def of(self, subject: Subject) -> float:
        """Return the number."""
        image = subject.samples.images[:1].to(subject.device)
        with attention_as_products(), FlopCounterMode(display=False) as counter:
            subject.module(image)
        return float(counter.get_total_flops())
