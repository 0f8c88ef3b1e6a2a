"""What the networks are made of."""

from collections import OrderedDict

from torch import nn

from suture.common.errors import NetworkError


def name_in_a_row(**modules: nn.Module) -> nn.Sequential:
    """Return the modules in a row, under these names."""
    return nn.Sequential(OrderedDict(modules))


def require_whole(network: str, least: int = 1, **values: object) -> None:
    """Refuse arguments that are no whole numbers of at least ``least``, by ``NetworkError``."""
    for key, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise NetworkError(f"{network} cannot have {key}={value!r}; give a whole number of at least {least}")


def require_stages(network: str, blocks: object, most: int = 4) -> None:
    """Refuse ``blocks`` that do not count the blocks of one to ``most`` stages, by ``NetworkError``."""
    counts = blocks if isinstance(blocks, tuple | list) else ()
    if not 1 <= len(counts) <= most or not all(type(n) is int and n > 0 for n in counts):
        raise NetworkError(
            f"{network} cannot have blocks={blocks!r}; give one to four stages of at least one block each, "
            "such as blocks=(1, 1, 1), or blocks=(2,) for a single stage"
        )


def init_kaiming(module: nn.Module) -> None:
    """Give a convolution the weights of He et al. 2015, by its outputs, as torchvision's networks have them."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)
