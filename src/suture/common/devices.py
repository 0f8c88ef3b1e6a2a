"""Devices that networks compute on: the processor, or a GPU of torch's.

A device is not a part of a trial's identity. A GPU adds up in another order than the processor, so its scores differ a
little; the table says in its column ``device`` which it was.
"""

from typing import Any

import torch

from suture.common.errors import DeviceError
from suture.common.sizes import available_memory, in_words

CPU = torch.device("cpu")
KINDS = ["cpu", "cuda"]  #: the kinds of device that were thought of; a test adds one that pretends


def parse_device(name: str | torch.device) -> torch.device:
    """Return the device of this name, whether the machine has it or not. Raises ``DeviceError`` for other names."""
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise DeviceError(f"{name!r} is not a device; give 'cpu', 'cuda' or 'cuda:1'") from error
    if device.type not in KINDS:
        raise DeviceError(
            f"device '{device}': Suture was not tried on this kind of device; give 'cpu', 'cuda' or 'cuda:1'"
        )
    return device


def find_device(name: str | torch.device) -> torch.device:
    """Return the named device, with its number. Raises ``DeviceError``, listing those there are, if it is absent."""
    device = parse_device(name)
    if device.type == "cpu":
        return CPU
    count = count_devices(device.type)
    if not count:
        why = ""
        if device.type == "cuda" and torch.version.cuda is None and torch.version.hip is None:
            why = " (this torch is built for the processor alone)"
        raise DeviceError(f"device '{device}': torch finds no GPU here{why}; give 'cpu', or see suture doctor")
    index = _module(device.type).current_device() if device.index is None else device.index
    if index >= count:
        there = ", ".join(f"'{device.type}:{place}'" for place in range(count))
        raise DeviceError(f"device '{device}' is not there; give {there} or 'cpu'")
    return torch.device(device.type, index)


def count_devices(kind: str) -> int:
    """Return how many devices of a kind can be used."""
    module = _module(kind)
    return int(module.device_count()) if module.is_available() else 0


def _module(kind: str) -> Any:
    return getattr(torch, kind)


def free_memory(device: torch.device) -> int:
    """Return the bytes that new tensors may take on a device, including memory that torch holds unused."""
    if device.type == "cpu":
        return available_memory()
    module = _module(device.type)
    free, _ = module.mem_get_info(device)
    return int(free + module.memory_reserved(device) - module.memory_allocated(device))


def name_device(device: torch.device) -> str:
    """Return the maker's name of a device; for the processor, ``cpu``."""
    return "cpu" if device.type == "cpu" else str(_module(device.type).get_device_name(device))


def check_room(device: torch.device, needed: int, what: str) -> None:
    """Raise ``DeviceError`` if a device has no room for so many bytes; the processor's memory is not checked here."""
    if device.type != "cpu" and needed > (free := free_memory(device)):
        raise DeviceError(
            f"{what} needs {in_words(needed)} on {device}, where {in_words(free)} are free; end other work "
            "there, or give device='cpu'"
        )
