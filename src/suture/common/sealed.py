"""Files that carry their own hash, so that a reader can detect a damaged one.

The *seal* is the SHA-256 of the whole file with zeros in its own place: an entry of a JSON object, and of the metadata
of parquet and safetensors files. It begins with two words, ``sealed`` and ``sha256:``, because otherwise one flipped
bit would make a file look like one that never had a seal, as those of other programs and of older versions.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from mmap import mmap
from typing import Any

SEAL = {"sealed": f"sha256:{'0' * 64}"}  #: the entry, before ``seal`` fills it
_FOUND = re.compile(rb"sealed.{1,8}?sha256:([0-9a-f]{64})", re.DOTALL)


def seal(content: bytes) -> bytes:
    """Return the content of a file that has ``SEAL`` among its entries, with the hash filled in."""
    found = _FOUND.search(content)
    assert found is not None
    sealed = bytearray(content)
    sealed[found.start(1) : found.end(1)] = hashlib.sha256(content).hexdigest().encode()
    return bytes(sealed)


def is_sound(content: bytes | mmap) -> bool:
    """Return whether the content of a file matches its seal, or was never sealed."""
    found = _FOUND.search(content)
    if found is None:
        return content.find(b"sealed") < 0 and content.find(b"sha256:") < 0
    sha = hashlib.sha256(content[: found.start(1)] + b"0" * 64)
    with memoryview(content) as view, view[found.end(1) :] as rest:
        sha.update(rest)
    return sha.hexdigest().encode() == found[1]


def to_json(content: Mapping[str, Any], **layout: Any) -> str:
    """Return plain values as sealed JSON."""
    written = json.dumps(SEAL | dict(content), ensure_ascii=False, allow_nan=False, **layout)
    return seal(written.encode("utf-8", "backslashreplace")).decode()  # half a character, as in odd file names


def from_json(content: bytes, *names: str) -> dict[str, Any]:
    """Return the entries of a JSON object, which must have these names.

    Raises ``ValueError`` if it does not match its seal, or is another file.
    """
    if not is_sound(content):
        raise ValueError("it has changed since it was written")
    try:
        found = json.loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if not isinstance(found, dict):
        raise ValueError(f"it holds a {type(found).__name__}, not a mapping of names")
    if lacking := [name for name in names if name not in found]:
        raise ValueError(f"it lacks {', '.join(map(repr, lacking))}")
    return {name: value for name, value in found.items() if name not in SEAL}
