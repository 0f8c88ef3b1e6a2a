"""Versions of the parts that a number depends on, so that a change of one part makes no other's numbers old.

Whatever takes part in a trial and is registered by ``keyed_as`` (a fit, a family of stitches, a score, a task, noise)
has a ``version``, a class attribute that is 1 unless it says otherwise. Two parts that are not classes, the cuts and
the measurement, are declared here by name. Raise a version with a change that may change a number: then every trial
that uses the part has another key, and all others keep theirs. No seed depends on a version.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from suture.common.constants import CUTS_VERSION
from suture.common.names import NAMES

Versions = Mapping[str, int]
"""The version of each part, by its registered name."""

#: Kinds of names whose objects are parts of trials; the packages that these are in have every part.
_KINDS = ("stitch", "fit", "variant", "control", "index", "measure")
_REGISTERED = re.compile(r'^@keyed_as\("([^"]+)"\)', re.MULTILINE)
_VERSION = re.compile(r"^    version: ClassVar\[int\] = (\d+)", re.MULTILINE)
DECLARED: dict[str, int] = {
    "cuts": CUTS_VERSION,  #: how networks are cut, and activations computed
    "measurement": 1,  #: how a fitted stitch is run and scored
}


def versions_of(*things: object) -> dict[str, int]:
    """List the versions of all parts that the things are made of, by name, the declared ones included.

    Dataclasses are searched field by field, and so are tuples. A user's subclass counts as the part that it extends;
    its own code is in the key by its source.
    """
    return dict(sorted({**DECLARED, **dict(_walk(things))}.items()))


def _walk(things: Iterable[object]) -> Iterator[tuple[str, int]]:
    from suture.common.hashing import registered_name  # takes torch with it, which reading versions does not need

    for thing in things:
        if isinstance(thing, tuple):
            yield from _walk(thing)
            continue
        named = next((kind for kind in type(thing).__mro__ if registered_name(kind)), None)
        if named is not None:
            yield str(registered_name(named)), getattr(thing, "version", 1)
        if is_dataclass(thing) and named is not None:
            yield from _walk(getattr(thing, field.name, None) for field in fields(thing))


def spell_versions(versions: Versions) -> str:
    """Write versions as tables hold them: ``Converged 3, Conv 1``."""
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def read_versions(text: str) -> dict[str, int]:
    """Read versions that ``spell_versions`` wrote."""
    pairs = (part.rpartition(" ") for part in text.split(", ") if part)
    return {name: int(version) for name, _, version in pairs}


def say_outdated(texts: Iterable[str], standing: Mapping[str, Iterable[int]] | None = None) -> str:
    """Name the parts whose version in texts as tables hold them is not today's; nothing if there are none.

    Versions that are ``standing``, by the part's name, count as today's. An empty text is of an unknown version.
    """
    today, stands, given = list_versions(), standing or {}, set(texts)
    held = sorted({pair for text in given for pair in read_versions(text).items()})
    said = [
        f"{name} {version} (now {today.get(name, 'gone')})"
        for name, version in held
        if version != today.get(name) and version not in stands.get(name, ())
    ]
    return ", ".join([*said, *(["an unknown version"] if "" in given else [])])


def list_versions() -> dict[str, int]:
    """Return today's versions of all parts there are, by name."""
    return {**_read_source(), **DECLARED}


@cache
def _read_source() -> dict[str, int]:
    """Read the version of every registered part in the text of the packages that have parts.

    They are not imported, because that takes torch with it, which ``suture status`` need not wait for.
    """
    found = {}
    for package in {place.partition(".")[0] for kind in _KINDS for place in NAMES.get(kind, {}).values()}:
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            for file in Path(folder).rglob("*.py"):
                _, *parts = _REGISTERED.split(file.read_text(encoding="utf-8"))
                for name, text in zip(parts[::2], parts[1::2], strict=True):
                    version = _VERSION.search(text)
                    found[name] = int(version[1]) if version else 1
    return found
