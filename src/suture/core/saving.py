"""A stitched network on disk: ``stitch.safetensors`` and ``stitched.json`` in a folder of their own.

The two networks are not copied into it: they are named by their fingerprints, and given again to load it. A family of
stitches is written as its class and its settings, which are plain values; nothing is unpickled. The JSON holds a hash
of the tensors, so that a folder of which only a part was written, or changed, is refused.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from suture.common.atomic import whole
from suture.common.errors import CheckpointError, OutputError, SutureError
from suture.common.hashing import registered_name
from suture.core import stitches
from suture.core.network.network import Network
from suture.core.seam import Seam
from suture.core.stitches import Stitch

FORMAT = 1  #: of the folder; a reader refuses any other
TENSORS, DESCRIPTION = "stitch.safetensors", "stitched.json"
_ROLES = ("sender", "receiver")


def write(
    folder: str | Path, seam: Seam, stitch: nn.Module, family: Stitch | None, record: Mapping[str, object]
) -> Path:
    """Write a stitch and what it joins; a reader sees the old content or the new one, or refuses.

    Raises ``OutputError`` if the folder cannot be written, or the record holds more than plain values.
    """
    folder = Path(folder).expanduser()
    content = to_safetensors(stitch)
    text = json.dumps(describe(seam, content, family, record), indent=2, ensure_ascii=False, allow_nan=False)
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


def describe(seam: Seam, content: bytes, family: Stitch | None, record: Mapping[str, object]) -> dict[str, object]:
    """Return what ``stitched.json`` says, as plain values, of a stitch whose tensors are ``content``."""
    sides = {
        role: {
            "name": network.name,
            "fingerprint": network.fingerprint,
            "cut": cut.name,
            "source": network.source,
            "images": list(network.image_shape),
        }
        for role, (network, cut) in zip(_ROLES, seam.sides, strict=True)
    }
    return {
        "format": FORMAT,
        "suture": suture_version(),
        "stitch": _spell(family),
        "tensors": hashlib.sha256(content).hexdigest(),
        **sides,
        "record": to_plain(record, "the record"),
    }


def suture_version() -> str:
    """Say which version of Suture this is."""
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
        f"{where} holds a {type(value).__name__}, which a JSON file cannot; give numbers, text, lists and dictionaries "
        "with text as keys"
    )


def _families() -> dict[str, type[Stitch]]:
    """Return the library's families by the names under which they are saved, which are those of keys."""
    found = [getattr(stitches, name) for name in stitches.__all__]
    kinds = [kind for kind in found if isinstance(kind, type) and issubclass(kind, Stitch)]
    return {name: kind for kind in kinds if (name := registered_name(kind))}


def _spell(family: object) -> dict[str, object] | None:
    """Describe a family by its class and settings; a family of the user's by its class alone."""
    if family is None:
        return None
    name = registered_name(type(family))
    if name is None or name not in _families() or not is_dataclass(family):
        return {"family": f"{type(family).__module__}.{type(family).__qualname__}", "settings": None}
    settings: dict[str, object] = {}
    for field in fields(family):
        if field.init:
            value = getattr(family, field.name)
            if isinstance(value, Network):
                settings[field.name] = {"network": value.name, "fingerprint": value.fingerprint}
            else:
                is_family = isinstance(value, Stitch)
                settings[field.name] = _spell(value) if is_family else to_plain(value, f"the family {name}")
    return {"family": name, "settings": settings}


# --- back -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Saved:
    """What a folder holds: its description as plain values, and the stitch's tensors by name."""

    folder: Path
    description: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    @property
    def record(self) -> Mapping[str, Any]:
        """What was kept beside the stitch: trial key, fit, scores."""
        kept: Mapping[str, Any] = self.description["record"]
        return kept

    def made_of(self, role: str) -> tuple[str, tuple[int, ...]] | None:
        """Return the model string and the image shape (C, H, W) of a network, if they are known."""
        side = self.description[role]
        source, images = side.get("source"), side.get("images")
        return (source, tuple(images)) if isinstance(source, str) and isinstance(images, list) else None

    def seam(self, sender: Network | None, receiver: Network | None) -> Seam:
        """Put the two networks around the seam. Raises ``CheckpointError`` unless they are those that were saved."""
        if sender is None or receiver is None:
            missing = [role for role, network in zip(_ROLES, (sender, receiver), strict=True) if network is None]
            wanted = " and ".join(f"{role}={self._name(role)}" for role in missing)
            raise CheckpointError(f"{self.folder} holds a stitch, not the networks it joins; give {wanted}")
        for role, network in zip(_ROLES, (sender, receiver), strict=True):
            if network.fingerprint != self.description[role]["fingerprint"]:
                raise CheckpointError(
                    f"{network.name}, fingerprint {network.fingerprint[:8]}…, is not the {role} of {self.folder}, "
                    f"which is {self._name(role)}; load the same weights, with the same preprocessing, as when it was "
                    "saved"
                )
        return Seam(sender, receiver, *(self.description[role]["cut"] for role in _ROLES))

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
        description = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); save it again") from error
    if not isinstance(description, dict) or "format" not in description:
        raise CheckpointError(f"{path} does not describe a stitched network; give a folder that save() wrote")
    if description["format"] != FORMAT:
        raise CheckpointError(
            f"{folder} has format {description['format']!r}, written by suture {description.get('suture')}; this one "
            f"reads format {FORMAT}: use that version, or save it again"
        )
    family = description.get("stitch", ...)
    parts = [_has(description.get(role), name=str, fingerprint=str, cut=str) for role in _ROLES]
    parts += [family is None or _has(family, family=str, settings=dict | None)]
    if not all(parts) or not _has(description, tensors=str, record=dict):
        raise CheckpointError(f"{path} is damaged: a part of the description is missing; save it again")
    if hashlib.sha256(content).hexdigest() != description["tensors"]:
        raise CheckpointError(
            f"{folder / TENSORS} is not what {DESCRIPTION} describes: it was changed or damaged, or one "
            "of the two was not written; save it again"
        )
    return Saved(folder, description, from_bytes(content))


def _has(value: Any, **kinds: Any) -> bool:
    """Whether a value read from JSON is a dictionary with entries of these kinds."""
    return isinstance(value, dict) and all(isinstance(value.get(key, ...), kind) for key, kind in kinds.items())


def rebuild(saved: Saved, seam: Seam, given: Stitch | nn.Module | None) -> tuple[nn.Module, Stitch | None]:
    """Build the stitch of its family, or take the module given, and fill it; in evaluation mode, on its device.

    Raises ``CheckpointError`` if the family is not known, is another than was saved, or does not take the tensors.
    """
    family = None
    if isinstance(given, nn.Module):
        stitch = given
    else:
        spelled = saved.description["stitch"]
        if given is not None and spelled is not None and _spell(given) != spelled:
            raise CheckpointError(f"{saved.folder} holds {_say(spelled)}, not {_say(_spell(given))}; give that family")
        family = given or _make(saved, seam, spelled)
        with torch.random.fork_rng([]), torch.inference_mode(False):
            stitch = family.build(*seam.shapes)
    try:
        stitch.load_state_dict(dict(saved.tensors), assign=True)
    except RuntimeError as error:
        raise CheckpointError(
            f"the tensors in {saved.folder} do not fit the stitch ({str(error).splitlines()[-1].strip()}); give the "
            "family that it was saved from"
        ) from error
    return stitch.to(seam.receiver.device).requires_grad_(False).eval(), family


def _say(spelled: Mapping[str, Any] | None) -> str:
    if spelled is None:
        return "a stitch of no named family"
    settings = spelled.get("settings") or {}
    return f"a stitch of {spelled.get('family')}({', '.join(f'{k}={v!r}' for k, v in settings.items())})"


def _make(saved: Saved, seam: Seam, spelled: Mapping[str, Any] | None) -> Stitch:
    """Make a family of the library from its description."""
    if spelled is None or spelled.get("settings") is None:
        raise CheckpointError(
            f"{saved.folder} holds {_say(spelled)}, which is no family of the library; give it, stitch=, or a module "
            "of its kind to be filled"
        )
    kind = _families().get(spelled["family"])
    if kind is None:
        raise CheckpointError(f"{saved.folder} holds {_say(spelled)}, which this version does not know; update suture")
    settings: dict[str, Any] = {}
    for key, value in spelled["settings"].items():
        if isinstance(value, dict) and "family" in value:
            settings[key] = _make(saved, seam, value)
        elif isinstance(value, dict) and "fingerprint" in value:
            known = {network.fingerprint: network for network in seam.networks}
            if value["fingerprint"] not in known:
                raise CheckpointError(
                    f"{saved.folder} holds layers of {value.get('network')}, neither its sender nor its receiver; give "
                    "the family, stitch="
                )
            settings[key] = known[value["fingerprint"]]
        else:
            settings[key] = tuple(value) if isinstance(value, list) else value
    try:
        return kind(**settings)
    except (TypeError, SutureError) as error:
        raise CheckpointError(
            f"{saved.folder} holds {_say(spelled)}, which cannot be made ({error}); save it again"
        ) from error
