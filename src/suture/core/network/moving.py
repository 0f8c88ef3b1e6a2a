"""A network on another device: the proof that it computes the same there."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from suture.common.errors import DataError, NetworkError
from suture.common.formatting import first_line
from suture.core.network.segments import are_close, have_same_bits

if TYPE_CHECKING:
    from suture.core.network.network import Network

RUNS = 4  #: in which a network must give the same bits


def prove_moved(own: "Network", moved: "Network", prepare: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """Return a moved network's inputs and outputs for the example, after checking that the move did not change them.

    ``prepare`` makes its inputs of the example. Raises ``NetworkError`` if the network does not run there, gives other
    outputs, or different ones in each run.
    """
    name, device, example = own.name, moved.device, own.example
    try:
        inputs = prepare()
        outputs, *again = (moved(example) for _ in range(RUNS))
    except (DataError, RuntimeError) as error:
        raise NetworkError(
            f"{name} does not run on {device}: {first_line(error)}; a function or a preprocessing may hold tensors "
            "that are not moved with it: keep them as buffers of a module, or create them on the device of their input"
        ) from error
    if not all(have_same_bits(outputs, other) for other in again):
        raise NetworkError(
            f"{name} gives a different output in each run on {device}; replace the operation that does, which "
            "torch.use_deterministic_algorithms(True) names when the model runs, or measure it with device='cpu'"
        )
    wanted = own(example)
    share = 1e-2 if wanted.dtype == torch.float32 else 5e-2
    if not are_close(outputs.to(wanted.device), wanted, share):
        raise NetworkError(
            f"{name} gives different outputs on {device} and on {own.device}; find the operation that differs "
            f"there, or measure it with device='{own.device}'"
        )
    return inputs, outputs
