"""A stitched network on disk: ``stitch.safetensors`` and ``stitched.json`` in a folder of their own.

The two networks are not copied into it: they are named by their fingerprints, and given again to load it. A family of
stitches is written as its class and its settings, which are plain values; nothing is unpickled. The JSON is
sealed and holds a hash of the tensors, so that a folder of which only a part was written, or changed, is refused.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from suture.common.atomic import whole
from suture.common.errors import CheckpointError, OutputError
from suture.common.hashing import registered_name
from suture.common.sealed import from_json, to_json
from suture.core.network.network import Network, Sides
from suture.core.stitches import FAMILIES, Layers, Probe, Shape, Stitch

FORMAT = 1  #: of the folder; a reader refuses any other
TENSORS, DESCRIPTION = "stitch.safetensors", "stitched.json"
ROLES = ("sender", "receiver")
_LIBRARY: tuple[type[Stitch], ...] = (*FAMILIES.values(), Layers, Probe)
_FAMILIES = {registered_name(family): family for family in _LIBRARY}


def write(
    folder: str | Path, sides: Sides, stitch: nn.Module, family: Stitch | None, record: Mapping[str, object]
) -> Path:
    """Write a stitch and a description of its networks; a reader sees the old content or the new one, or refuses.

    Raises ``OutputError`` if the folder cannot be written, or the record holds more than plain values.
    """
    folder = Path(folder).expanduser()
    content = to_safetensors(stitch)
    text = to_json(describe(sides, content, family, record), indent=2)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, written in ((TENSORS, content), (DESCRIPTION, text.encode())):
            with whole(folder / name) as temporary:
                temporary.write_bytes(written)
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror or error}; name another folder") from error
    return folder


def to_safetensors(module: nn.Module) -> bytes:
    """Return the parameters and buffers of a module as the content of a safetensors file."""
    # clones, because safetensors refuses tensors that share memory
    return to_bytes({name: t.detach().cpu().clone().contiguous() for name, t in module.state_dict().items()})


def describe(sides: Sides, content: bytes, family: Stitch | None, record: Mapping[str, object]) -> dict[str, object]:
    """Return the content of ``stitched.json``, as plain values, for a stitch whose tensors are ``content``."""
    joined = {
        role: {
            "name": network.name,
            "fingerprint": network.fingerprint,
            "cut": cut.name,
            "source": network.source,
            "images": list(network.image_shape),
        }
        for role, (network, cut) in zip(ROLES, sides, strict=True)
    }
    return {
        "format": FORMAT,
        "suture": suture_version(),
        "stitch": _spell(family),
        "tensors": hashlib.sha256(content).hexdigest(),
        **joined,
        "record": to_plain(record, "the record"),
    }


def suture_version() -> str:
    """Return the version of Suture."""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version("suture")
    return "unknown"


def to_plain(value: object, where: str) -> Any:
    """Return plain values as JSON has them; numbers that are not finite become null.

    Raises ``OutputError`` for anything else.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case list() | tuple():
            return [to_plain(item, where) for item in value]
        case Mapping() if all(isinstance(key, str) for key in value):
            return {key: to_plain(item, where) for key, item in value.items()}
    raise OutputError(
        f"{where} holds a {type(value).__name__}, which a JSON file cannot hold; give numbers, text, lists and "
        "dictionaries "
        "with text as keys"
    )


def _spell(family: Stitch | None) -> dict[str, object] | None:
    """Describe a family by its class and settings; a family of the user's by its class alone."""
    if family is None:
        return None
    name = registered_name(type(family))
    if name not in _FAMILIES:
        return {"family": f"{type(family).__module__}.{type(family).__qualname__}", "settings": None}
    settings: dict[str, object] = {}
    for field in fields(family):  # type: ignore[arg-type]  # the library's families are all dataclasses
        if field.init:
            value = getattr(family, field.name)
            if isinstance(value, Network):
                settings[field.name] = {"network": value.name, "fingerprint": value.fingerprint}
            else:
                settings[field.name] = to_plain(value, f"the family {name}")
    return {"family": name, "settings": settings}


@dataclass(frozen=True)
class Saved:
    """The content of a folder: its description as plain values, and the stitch's tensors by name."""

    folder: Path
    description: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    @property
    def record(self) -> Mapping[str, Any]:
        """The record kept beside the stitch: trial key, fit, scores."""
        kept: Mapping[str, Any] = self.description["record"]
        return kept

    def made_of(self, role: str) -> tuple[str, tuple[int, ...]] | None:
        """Return the model string and the image shape (C, H, W) of a network, if they are known."""
        side = self.description[role]
        source, images = side.get("source"), side.get("images")
        return (source, tuple(images)) if isinstance(source, str) and isinstance(images, list) else None

    def check(self, sender: Network | None, receiver: Network | None) -> tuple[Network, Network]:
        """Return the two networks. Raises ``CheckpointError`` unless they are those that were saved."""
        if sender is None or receiver is None:
            missing = [role for role, network in zip(ROLES, (sender, receiver), strict=True) if network is None]
            wanted = " and ".join(f"{role}={self._name(role)}" for role in missing)
            raise CheckpointError(f"{self.folder} holds a stitch, not the networks it joins; give {wanted}")
        for role, network in zip(ROLES, (sender, receiver), strict=True):
            if network.fingerprint != self.description[role]["fingerprint"]:
                raise CheckpointError(
                    f"{network.name}, fingerprint {network.fingerprint[:8]}…, is not the {role} of {self.folder}, "
                    f"which is {self._name(role)}; load the same weights, with the same preprocessing, as when it was "
                    "saved"
                )
        return sender, receiver

    def _name(self, role: str) -> str:
        side = self.description[role]
        source = f" made of {side['source']}" if side.get("source") else ""
        return f"the network {side['name']}{source} (fingerprint {side['fingerprint'][:8]}…)"


def read(folder: str | Path) -> Saved:
    """Read a folder that ``write`` wrote. Raises ``CheckpointError`` if it is absent, damaged or of another kind."""
    folder = Path(folder).expanduser()
    for name in (DESCRIPTION, TENSORS):
        if not (folder / name).is_file():
            raise CheckpointError(f"no stitched network in {folder}: it has no {name}; give a folder that save() wrote")
    path, content = folder / DESCRIPTION, (folder / TENSORS).read_bytes()
    try:
        description = from_json(path.read_bytes(), "format", "stitch", "tensors", "record", *ROLES)
        if description["format"] != FORMAT:
            raise CheckpointError(
                f"{folder} has format {description['format']!r}, written by suture {description.get('suture')}; this "
                f"one reads format {FORMAT}: use that version, or save it again"
            )
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} is damaged, or describes no stitched network ({error!r}); save it again"
        ) from error
    if hashlib.sha256(content).hexdigest() != description["tensors"]:
        raise CheckpointError(
            f"{folder / TENSORS} does not match {DESCRIPTION}: it was changed or damaged, or one "
            "of the two was not written; save it again"
        )
    return Saved(folder, description, from_bytes(content))


def rebuild(
    saved: Saved, given: Stitch | nn.Module | None, shapes: tuple[Shape, Shape], networks: Sequence[Network]
) -> tuple[nn.Module, Stitch | None]:
    """Build the stitch of its family, or take the module given, and fill it; in evaluation mode.

    ``shapes`` are those that it joins; ``networks`` are those whose layers it may be made of.
    Raises ``CheckpointError`` if the family is not known, is another than was saved, or does not take the tensors.
    """
    family = None
    if isinstance(given, nn.Module):
        stitch = given
    else:
        spelled = saved.description["stitch"]
        if given is not None and spelled is not None and _spell(given) != spelled:
            raise CheckpointError(f"{saved.folder} holds {_say(spelled)}, not {_say(_spell(given))}; give that family")
        family = given or _make(saved, networks, spelled)
        with torch.random.fork_rng([]), torch.inference_mode(False):
            stitch = family.build(*shapes)
    try:
        stitch.load_state_dict(dict(saved.tensors), assign=True)
    except RuntimeError as error:
        raise CheckpointError(
            f"the tensors in {saved.folder} do not fit the stitch ({str(error).splitlines()[-1].strip()}); give the "
            "family that it was saved from"
        ) from error
    return stitch.requires_grad_(False).eval(), family


def _say(spelled: Mapping[str, Any] | None) -> str:
    if spelled is None:
        return "a stitch of no named family"
    settings = spelled["settings"] or {}
    return f"a stitch of {spelled['family']}({', '.join(f'{k}={v!r}' for k, v in settings.items())})"


def _make(saved: Saved, networks: Sequence[Network], spelled: Mapping[str, Any] | None) -> Stitch:
    """Make a family of the library from its description."""
    if spelled is None or spelled["family"] not in _FAMILIES:
        raise CheckpointError(
            f"{saved.folder} holds {_say(spelled)}, which is not a family of this version of the library; give it, "
            "stitch=, or a module of its kind to be filled"
        )
    settings = dict(spelled["settings"])
    for key, value in settings.items():
        if isinstance(value, dict):
            known = {network.fingerprint: network for network in networks}
            if value["fingerprint"] not in known:
                raise CheckpointError(
                    f"{saved.folder} holds layers of {value['network']}, neither its sender nor its receiver; give "
                    "the family, stitch="
                )
            settings[key] = known[value["fingerprint"]]
    return _FAMILIES[spelled["family"]](**settings)
