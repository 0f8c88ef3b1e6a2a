"""How a training lays its tensors out in memory: channels last, which is faster, wherever that is safe."""

import torch
from torch import nn

_LEAST = 8  #: channels of a vector of AVX2


def choose_layout(model: nn.Module, device: torch.device) -> torch.memory_format:
    """Channels last, or the plain layout where PyTorch would write past the end of a gradient.

    On processors without AVX-512, torch 2.14.1's gradient of the weights of a strided 1×1 convolution of 2 to 7 input
    channels overruns its memory in channels last: it crashes, or worse, does not. Residual networks narrower than 8
    channels have such convolutions in their skips.
    """
    affected = device.type == "cpu" and torch.backends.cpu.get_cpu_capability() != "AVX512"
    if affected and any(_overruns(part) for part in model.modules()):
        return torch.contiguous_format
    return torch.channels_last


def _overruns(part: nn.Module) -> bool:
    if not isinstance(part, nn.Conv2d):
        return False
    return part.kernel_size == (1, 1) and max(part.stride) > 1 and 1 < part.in_channels // part.groups < _LEAST


def lay_out(model: nn.Module, layout: torch.memory_format) -> None:
    """Lay out the weights of convolutions; nothing else has four dimensions."""
    for parameter in model.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=layout)
