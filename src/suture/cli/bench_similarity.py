"""The command ``suture bench similarity``: linear CKA of all pairs of layers of two networks, by every method."""

import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from jsonargparse import ArgumentParser, Namespace
from torch import Tensor

from suture.cli.demo import two_networks
from suture.cli.models import models_named
from suture.cli.names import check_least
from suture.cli.options import MODEL, add_json
from suture.cli.output import say, show, show_json
from suture.common.atomic import whole
from suture.common.errors import CutError, OutputError, SutureError
from suture.common.processor import processor
from suture.common.seeds import undisturbed
from suture.common.sizes import in_words, physical_memory
from suture.core.activations.cache import Activations, Need
from suture.core.network.cuts import Cut
from suture.core.network.network import Network
from suture.data import Data, load_data
from suture.runs.bench.pairwise_cka import Comparison, compare, each_shape
from suture.runs.runners.progress import shown

SAMPLES = 2000  #: images that layers are compared on where no number is given, or all that there are
_ROOM = 0.7  #: of the memory that activations may take

Cuts = Sequence[Sequence[Cut]]


# --- the command ------------------------------------------------------------------------------------------------------


def add_arguments(parser: ArgumentParser) -> None:
    """Add what ``suture bench similarity`` takes."""
    add = parser.add_argument
    add("networks", type=str, nargs="*", metavar="NETWORK", help=f"two, each {MODEL}; by default small ones")
    add("--data", type=str, default=None, help="digits, mnist, cifar10, a Hugging Face hub id or a local folder")
    add("--size", type=int, default=None, metavar="PIXELS", help="resize the images to this side")
    add(
        "--samples",
        type=int,
        default=None,
        metavar="N",
        help=f"images to score; by default {SAMPLES}, or all there are",
    )
    add(
        "--cuts",
        type=str,
        default=None,
        metavar="CUTS",
        help="names or patterns, such as layer*,fc; by default all cuts",
    )
    add("--repeats", type=int, default=3, metavar="N", help="of which the medians are printed")
    add(
        "--each-shape",
        action="store_true",
        help="let the usual loop compute one pair of layers for every pair of sizes, and count it as often as there "
        "are pairs of these sizes; for networks with many cuts, where the loop takes long",
    )
    add("--bfloat16", action="store_true", help="also all pairs at once with products in bfloat16")
    add("--out", type=str, default=None, metavar="FILE.json", help="file for the result")
    add_json(parser)


def run(chosen: Namespace, command: str = "suture bench similarity") -> int:
    """Measure CKA of all pairs of layers by every method, and print what each takes and how exact it is; the exit code.

    Raises ``SutureError`` for wrong input, before anything is computed.
    """
    file = _checked(chosen)
    data = _limited(load_data(chosen.data or "digits", size=chosen.size), chosen.samples)
    networks = _networks(chosen.networks, data)
    cuts = [_cuts(network, chosen.cuts) for network in networks]
    size = _fitting(networks, cuts, data)
    layers, spent = _activations(networks, cuts, data)
    say(f"{len(cuts[0])} × {len(cuts[1])} pairs of layers on {data.score.name}, {len(data.score):,} images")
    timed = each_shape(*layers) if chosen.each_shape else None
    found = compare(*layers, repeats=chosen.repeats, timed=timed, half=chosen.bfloat16, progress=shown("run"))
    record = {
        "command": command,
        **_subject(networks, cuts, data),
        "activations": {"bytes": size, **spent},
        **_result(found, chosen.repeats),
    }
    if file is not None:
        with whole(file) as temporary:
            temporary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        say(f"wrote {file}")
    if chosen.json:
        show_json(record)
    else:
        show(_table(record), "", *_notes(record))
    return 0


def _checked(chosen: Namespace) -> Path | None:
    """The file to write, if any. Raises ``SutureError`` for what cannot be measured or written."""
    if len(chosen.networks) not in (0, 2):
        raise SutureError(f"{len(chosen.networks)} networks are given: give two, or none for the small ones")
    if chosen.networks and chosen.data is None:
        raise SutureError("missing --data: say on which images layers are compared, such as --data cifar10")
    if not chosen.networks and (chosen.data not in (None, "digits") or chosen.size is not None):
        raise SutureError("the small networks are for digits as they are: give two networks for other data or sizes")
    check_least(chosen, samples=2, repeats=1, size=1)
    if chosen.out is None:
        return None
    file = Path(chosen.out).expanduser()
    if file.suffix != ".json" or file.is_dir():
        raise OutputError(f"--out {chosen.out}: give a file whose name ends in .json")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole(file.with_name(f"{file.name}.tried")) as temporary:
            temporary.touch()
        file.with_name(f"{file.name}.tried").unlink()
    except OSError as error:
        raise OutputError(f"--out {chosen.out}: {error.strerror or error}; name another file") from error
    return file


def _limited(data: Data, samples: int | None) -> Data:
    return data.limited(score=min(SAMPLES, len(data.score)) if samples is None else samples)


def _networks(texts: Sequence[str], data: Data) -> list[Network]:
    """The two networks that texts name, or the demonstration's, trained here."""
    if not texts:
        return two_networks(data, say)
    networks = [model.network(data.example) for model in models_named(texts)]
    return [networks[0], networks[-1]]


def _cuts(network: Network, patterns: str | None) -> list[Cut]:
    """The cuts that patterns mean. Raises ``CutError`` where one means none."""
    if patterns is None:
        return list(network.cuts)
    wanted = set()
    for pattern in (part.strip() for part in patterns.split(",")):
        found = [cut for cut in network.cuts if any(fnmatchcase(name, pattern) for name in (cut.name, *cut.aliases))]
        if not found:
            raise CutError(f"'{pattern}' matches no cut of {network.name}; its cuts: {', '.join(network.cuts.names)}")
        wanted |= {cut.index for cut in found}
    return [cut for cut in network.cuts if cut.index in wanted]


def _fitting(networks: Sequence[Network], cuts: Cuts, data: Data) -> int:
    """The bytes of all activations. Raises ``SutureError`` where they are more than memory holds."""
    needs = [Need(network, data.score, cut.index) for network, of in zip(networks, cuts, strict=True) for cut in of]
    size, room = sum(need.nbytes for need in needs), int(_ROOM * physical_memory())
    if size > room:
        raise SutureError(
            f"the activations of all cuts on {len(data.score):,} images take {in_words(size)}, and there is room for "
            f"{in_words(room)}: give fewer --samples, or choose --cuts"
        )
    return size


def _activations(networks: Sequence[Network], cuts: Cuts, data: Data) -> tuple[list[list[Tensor]], dict[str, float]]:
    """The activations at every cut of each network, and the seconds that they take."""
    cpu, wall = time.process_time(), time.perf_counter()
    layers = []
    with undisturbed():
        for network, of in zip(networks, cuts, strict=True):
            cache = Activations(ram=physical_memory())
            layers.append([cache.at(network, cut, data.score) for cut in of])
    return layers, {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}


def _subject(networks: Sequence[Network], cuts: Cuts, data: Data) -> dict[str, Any]:
    """Of what it is measured, and on which machine."""
    return {
        "date": f"{datetime.now().astimezone():%Y-%m-%d %H:%M %z}",
        "processor": processor(),
        "torch": torch.__version__,
        "threads": 1,
        "data": data.score.name,
        "samples": len(data.score),
        "networks": [
            {"name": network.name, "cuts": [{"name": cut.name, "shape": cut.shape} for cut in of]}
            for network, of in zip(networks, cuts, strict=True)
        ],
    }


def _result(found: Comparison, repeats: int) -> dict[str, Any]:
    return {
        "pairs": found.reference.numel(),
        "pairs_timed": len(found.timed),
        "repeats": repeats,
        "methods": found.records(),
        "values": found.reference.tolist(),
    }


def _table(record: Mapping[str, Any]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column("linear CKA", no_wrap=True)
    for head in ("CPU s", "wall s", "faster", "largest error", "mean error"):
        table.add_column(head, justify="right")
    for method in record["methods"]:
        table.add_row(
            method["name"],
            *(f"{method[key]:.3g}" if method[key] < 100 else f"{method[key]:.0f}" for key in ("cpu", "wall")),
            f"{method['times_faster']:.1f}×",
            *(f"{method[key]:.1e}" for key in ("largest_error", "mean_error")),
        )
    return table


def _notes(record: Mapping[str, Any]) -> list[str]:
    """What the table's numbers are."""
    held, timed = record["activations"], record["pairs_timed"]
    some = "" if timed == record["pairs"] else f"; of the usual loop {timed} are timed, one for every pair of sizes"
    return [
        f"{record['pairs']} pairs of layers, {record['samples']:,} images of {record['data']}{some}",
        f"medians of {record['repeats']}, one thread; errors against products in float64; faster by CPU seconds",
        f"not counted: the activations, {held['cpu']:.1f} CPU s and {in_words(held['bytes'])}, the same for all",
        f"{record['processor']}, torch {record['torch']}",
    ]
