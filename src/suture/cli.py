"""The command line.

Results go to standard output, everything else to standard error. Exit codes: 0 all measured, 1 some trials failed,
2 wrong input, 130 interrupted.
"""

import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console

from suture import __version__
from suture.errors import SutureError

_MODEL = (
    "timm:NAME, torchvision:NAME, zoo:NAME or path/to/file.py:FACTORY, then arguments (,key=value) and weights "
    "(@file.safetensors)"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    chosen = _parser().parse_args(None if arguments is None else list(arguments))
    command = {"demo": _demo, "cuts": _cuts, "curve": _curve}[chosen.subcommand]
    try:
        return command(chosen[chosen.subcommand])
    except SutureError as error:
        print(f"suture: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("suture: interrupted; with --out, what was measured is in its table.parquet", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="suture",
        description="Model stitching: join the first layers of one network to the last of another, and measure.",
        version=__version__,
    )
    commands = parser.add_subcommands(required=True, title="commands", metavar="COMMAND")
    commands.add_subcommand("demo", _demo_parser(), help="two small networks on real digits, stitched at every cut")
    commands.add_subcommand("cuts", _cuts_parser(), help="where a network can be cut")
    commands.add_subcommand("curve", _curve_parser(), help="stitch one network to another at every cut they share")
    return parser


def _demo_parser() -> ArgumentParser:
    parser = ArgumentParser(
        description="Train two small networks on scikit-learn's handwritten digits, stitch them at every cut with "
        "controls, print the table and write it, with a figure, to a folder. About a minute on two cores; no network."
    )
    parser.add_argument("--out", type=str, default="suture-demo", help="folder for table.parquet and curve.png, .pdf")
    _add_json(parser)
    return parser


def _cuts_parser() -> ArgumentParser:
    parser = ArgumentParser(
        description="List every place in a network through which exactly one tensor passes.\n"
        "Example: suture cuts timm:resnet50"
    )
    parser.add_argument("model", type=str, help=_MODEL)
    parser.add_argument("--shape", type=str, default=None, help="of one raw image, such as 3x224x224")
    parser.add_argument("--dropped", action="store_true", help="also say which tensors are no cuts, and why")
    _add_json(parser)
    return parser


def _curve_parser() -> ArgumentParser:
    parser = ArgumentParser(
        description="Stitch the sender's first layers to the receiver's last at every cut that both share, with "
        "controls.\nExample: suture curve zoo:resnet@a.safetensors zoo:resnet@b.safetensors --data cifar10 --out runs"
    )
    parser.add_argument("sender", type=str, help=_MODEL)
    parser.add_argument("receiver", type=str, help="likewise")
    parser.add_argument("--data", type=str, required=True, help="digits, mnist, cifar10, a hub id or a local folder")
    parser.add_argument(
        "--at", type=str, default=None, help="cuts, separated by commas; by default all that they share"
    )
    parser.add_argument("--fit", type=str, default="default", help="how stitches are fitted: default, least-squares")
    parser.add_argument("--controls", type=str, default="all", help="all, none, or names separated by commas")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds of the stitch")
    parser.add_argument("--fit-samples", type=int, default=None, help="use only the first so many images to fit")
    parser.add_argument("--score-samples", type=int, default=None, help="use only the first so many images to score")
    parser.add_argument("--size", type=int, default=None, help="resize the images to this side in pixels")
    parser.add_argument("--out", type=str, default=None, help="folder for table.parquet and curve.png, .pdf")
    parser.add_argument("--config", action="config", help="a YAML file of these settings")
    _add_json(parser)
    return parser


def _add_json(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON to standard output instead of a table")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _demo(chosen: Namespace) -> int:
    from suture.demo import demo
    from suture.runners.local import prepare_folder
    from suture.runners.progress import shown

    folder = prepare_folder(chosen.out)
    return _finish(demo(folder, shown(), _say), folder, chosen.json)


def _cuts(chosen: Namespace) -> int:
    import torch

    from suture.report.screen import cuts_table
    from suture.zoo import load_network
    from suture.zoo.loading import image_shape

    shape = _shape(chosen.shape) if chosen.shape is not None else image_shape(chosen.model)
    random = torch.Generator().manual_seed(0)
    network = load_network(
        chosen.model, example=torch.randint(0, 256, (4, *shape), dtype=torch.uint8, generator=random)
    )
    if chosen.json:
        print(json.dumps(_cuts_record(network, shape), indent=2))
        return 0
    console = Console(highlight=False)
    console.print(cuts_table(network.cuts))
    refused = "".join(f"; {backend} could not: {reason}" for backend, reason in network.refused.items())
    console.print(
        f"{len(network.cuts)} cuts of {network.name} by {network.backend}{refused}, each verified bit for bit; "
        f"{len(network.cuts.dropped)} other tensors are no cuts{'' if chosen.dropped else ' (--dropped says why)'}",
        markup=False,
    )
    if chosen.dropped:
        for name, reason in network.cuts.dropped.items():
            console.print(f"  {name}: {reason}", markup=False)
    return 0


def _cuts_record(network: Any, shape: tuple[int, ...]) -> dict[str, object]:
    fields = ("name", "index", "depth", "shape", "parameters", "flops", "aliases")
    return {
        "network": network.name,
        "image_shape": shape,
        "backend": network.backend,
        "refused": network.refused,
        "cuts": [{field: getattr(cut, field) for field in fields} for cut in network.cuts],
        "dropped": network.cuts.dropped,
    }


def _shape(text: str) -> tuple[int, ...]:
    sizes = text.lower().replace(",", "x").split("x")
    if len(sizes) != 3 or not all(size.strip().isdigit() and int(size) > 0 for size in sizes):
        raise SutureError(f"--shape {text}: give channels, height and width of one image, such as 3x224x224")
    return tuple(int(size) for size in sizes)


def _curve(chosen: Namespace) -> int:
    from suture import plans
    from suture.data import load_data
    from suture.runners.local import prepare_folder, run
    from suture.runners.progress import shown

    folder = prepare_folder(chosen.out) if chosen.out is not None else None
    fit, controls = _fit(chosen.fit), _controls(chosen.controls)
    if chosen.seeds < 1:
        raise SutureError(f"--seeds {chosen.seeds}: give at least 1")
    data = load_data(chosen.data, size=chosen.size).limited(fit=chosen.fit_samples, score=chosen.score_samples)
    sender, receiver = _pair(chosen.sender, chosen.receiver, data)
    at = [cut.strip() for cut in chosen.at.split(",")] if chosen.at else None
    plan = plans.curve(sender, receiver, data=data, at=at, fit=fit, controls=controls, seeds=chosen.seeds)
    _say(f"{sender.name} → {receiver.name}: {len(plan)} trials on {data.name}, {len(data.fit):,} images to fit")
    return _finish(run(plan, store=folder, progress=shown()), folder, chosen.json)


def _pair(sender: str, receiver: str, data: Any) -> tuple[Any, Any]:
    """Both networks, with names that tell them apart; a random network is said to be one."""
    from suture.zoo import load_network
    from suture.zoo.loading import is_random, source_name

    names = [source_name(sender), source_name(receiver)]
    if names[0] == names[1] and sender != receiver:
        names = [f"{names[0]} A", f"{names[1]} B"]
    for text in dict.fromkeys((sender, receiver)):
        if is_random(text):
            _say(f"suture: {text} names no weights, so it is a random network; give some after an @")
    first = load_network(sender, example=data.example, name=names[0])
    return first, first if sender == receiver else load_network(receiver, example=data.example, name=names[1])


def _fit(name: str) -> Any:
    from suture.fits import LeastSquares, TaskLoss

    fits = {"default": TaskLoss(), "least-squares": LeastSquares()}
    if name not in fits:
        raise SutureError(f"no fit '{name}'; valid fits: {', '.join(fits)}")
    return fits[name]


def _controls(text: str) -> tuple[Any, ...]:
    from suture import controls

    by_name = {control.__name__.replace("_", "-"): control for control in controls.DEFAULT}
    if text in ("all", "none"):
        return controls.DEFAULT if text == "all" else ()
    names = [name.strip().replace("_", "-").replace(" ", "-") for name in text.split(",")]
    for name in names:
        if name not in by_name:
            raise SutureError(f"no control '{name}'; valid controls: all, none, {', '.join(by_name)}")
    return tuple(by_name[name] for name in names)


def _finish(table: Any, folder: Path | None, as_json: bool) -> int:
    """Print the table, write its figure, and say what failed; the exit code."""
    from suture.report import figures, screen

    failed = table[table["status"] == "failed"]["trial"].nunique()
    files = [folder / "table.parquet"] if folder is not None else []
    if folder is not None and (table["status"] == "ok").any():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            files += figures.save(figures.curve(table), folder / "curve")
    if as_json:
        rows = json.loads(table.to_json(orient="records"))
        print(json.dumps({"rows": rows, "files": [str(file) for file in files], "failed": failed}, indent=2))
    else:
        console = Console(highlight=False)
        console.print(screen.curve_heading(table), markup=False)
        console.print()
        console.print(screen.curve_table(table, width=console.width))
        console.print()
        console.print(screen.reading(table), markup=False)
    for file in files:
        _say(f"wrote {file}")
    if failed:
        _say(f"suture: {failed} of {table['trial'].nunique()} trials failed; the table's column 'error' says why")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
