"""The command line.

Results go to standard output, everything else to standard error. Exit codes: 0 all measured, 1 some trials failed,
2 wrong input, 130 interrupted. Nothing that takes long to import is imported before a command needs it.
"""

import json
import os
import shutil
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentError, Namespace

from suture.arguments import COMMANDS, parser, plainly
from suture.errors import CutError, ShapeError, SutureError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    known = parser()
    try:
        if not given:
            known.print_help(sys.stderr)
            return 2
        chosen = known.parse_args(given)
        command = dict(zip(COMMANDS, (_demo, _cuts, _curve, _matrix), strict=True))[chosen.command]
        with warnings.catch_warnings():
            if not sys.warnoptions:
                warnings.simplefilter("ignore")  # those of libraries; ours are errors
            return command(chosen[chosen.command])
    except ArgumentError as error:
        return _refuse(plainly(str(error), given))
    except SystemExit as done:  # --help, --version and --print_config
        return int(done.code or 0)
    except SutureError as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        _say("suture: interrupted; with --out, what was measured before is in its table.parquet")
        return 130
    except BrokenPipeError:  # whoever read the results has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _refuse(message: str) -> int:
    _say(f"suture: {' '.join(message.split())}")
    return 2


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _show(*things: Any) -> None:
    """Print tables and texts to standard output, without spaces at the ends of lines."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        console.print(*things, sep="\n")
    print("\n".join(line.rstrip() for line in captured.get().splitlines()), flush=True)


def _demo(chosen: Namespace) -> int:
    from suture.demo import demo
    from suture.runners.local import prepare_folder
    from suture.runners.progress import shown

    folder = prepare_folder(chosen.out)
    return _finish(demo(folder, shown(), _say), folder, chosen.json)


def _cuts(chosen: Namespace) -> int:
    import torch

    from suture.report.screen import cuts_table, dropped_table
    from suture.zoo.loading import image_shape, load_model

    model = load_model(chosen.model)
    shape = _shape(chosen.shape) if chosen.shape is not None else image_shape(chosen.model)
    random = torch.Generator().manual_seed(0)
    example = torch.randint(0, 256, (4, *shape), dtype=torch.uint8, generator=random)
    network = model.network(example)
    if chosen.json:
        print(json.dumps(_cuts_record(network, shape), indent=2), flush=True)
        return 0
    dropped = network.cuts.dropped
    refused = "".join(f"; {backend} could not: {reason}" for backend, reason in network.refused.items())
    said = f"{len(network.cuts)} cuts of {network.name} by {network.backend}{refused}, each verified bit for bit"
    if dropped:
        said += f"; {len(dropped)} other tensors are no cuts" + ("" if chosen.dropped else ", --dropped says why")
    _show(
        cuts_table(network.cuts), "", said, *(["", dropped_table(network.cuts)] if chosen.dropped and dropped else [])
    )
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
    if len(sizes) != 3 or not all(size.strip().isdecimal() and int(size) > 0 for size in sizes):
        raise SutureError(f"--shape {text}: give channels, height and width of one image, such as 3x224x224")
    return tuple(int(size) for size in sizes)


def _curve(chosen: Namespace) -> int:
    settings = _settings(chosen)
    models = _models([chosen.sender, chosen.receiver])
    if len(models) == 1:
        _say(f"suture: sender and receiver are one network, {chosen.sender}; give another to compare")
    folder, data, networks = _prepared(chosen, models)
    sender, receiver = networks[0], networks[-1]
    plan = _plan(chosen.at, sender, receiver, data=data, **settings)
    _say_data(f"{sender.name} → {receiver.name}", data)
    return _finish(_run(plan, folder), folder, chosen.json)


def _matrix(chosen: Namespace) -> int:
    from suture import plans

    settings = _settings(chosen)
    into = chosen.into if chosen.into is not None else chosen.senders
    if chosen.into is None and len(dict.fromkeys(chosen.senders)) == 1:
        raise SutureError(
            f"{chosen.senders[0]} is the only network; give others, or --into RECEIVER, which may be the same again"
        )
    texts = list(dict.fromkeys((*chosen.senders, *into)))
    folder, data, networks = _prepared(chosen, _models(texts))
    named = dict(zip(texts, networks, strict=True))
    sides = [[named[text] for text in dict.fromkeys(side)] for side in (chosen.senders, into)]
    settings |= {key: _patterns(chosen[option]) for key, option in _CUTS.items()}
    try:
        plan = plans.matrix(sides[0], sides[1], data=data, **settings)
    except ShapeError as error:
        raise ShapeError(f"{error}; choose other cuts with --at, or another --stitch") from error
    names = [", ".join(network.name for network in side) for side in sides]
    _say_data(" → ".join(names), data)
    return _finish_matrix(_run(plan, folder), folder, chosen.json)


_CUTS = {"cuts": "at", "sender_cuts": "sender_at", "receiver_cuts": "receiver_at"}


def _patterns(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(pattern.strip() for pattern in text.split(","))


def _settings(chosen: Namespace) -> dict[str, Any]:
    """How to measure: what a plan takes beside networks, cuts and data. Wrong numbers are refused first."""
    from suture.choices import controls_named, fit_named, stitch_named

    for name, least in (("seeds", 1), ("fit_samples", 2), ("score_samples", 2), ("size", 1)):
        if chosen[name] is not None and chosen[name] < least:
            raise SutureError(f"--{name.replace('_', '-')} {chosen[name]}: give at least {least}")
    return {
        "stitch": stitch_named(chosen.stitch) if chosen.stitch is not None else None,
        "fit": fit_named(chosen.fit),
        "controls": controls_named(chosen.controls),
        "seeds": chosen.seeds,
    }


def _prepared(chosen: Namespace, models: list[Any]) -> tuple[Path | None, Any, list[Any]]:
    """The folder to write to, if any, the data, and the networks."""
    from suture.data import load_data
    from suture.runners.local import prepare_folder

    folder = prepare_folder(chosen.out) if chosen.out is not None else None
    data = load_data(chosen.data, size=chosen.size).limited(fit=chosen.fit_samples, score=chosen.score_samples)
    return folder, data, [model.network(data.example) for model in models]


def _say_data(what: str, data: Any) -> None:
    _say(f"{what} on {data.name}: {len(data.fit):,} images to fit, {len(data.score):,} to score")


def _run(plan: Any, folder: Path | None) -> Any:
    from suture.runners.local import run
    from suture.runners.progress import shown

    return run(plan, store=folder, progress=shown())


def _plan(at: str | None, sender: Any, receiver: Any, **settings: Any) -> Any:
    """The trials at the cuts that ``--at`` names, or at all that both share."""
    from suture import plans

    plan = plans.Plan(())
    for text in _shared(sender, receiver) if at is None else dict.fromkeys(at.split(",")):
        cuts = [cut.strip() for cut in text.split(":")]
        if len(cuts) > 2:
            raise SutureError(f"--at {text}: give one cut, or SENDER_CUT:RECEIVER_CUT where the names differ")
        try:
            seam = plans.seam(sender, receiver, at=(cuts[0], cuts[-1]), **settings)
        except ShapeError as error:
            raise ShapeError(f"at {text}: {error}; choose the cuts with --at, or another --stitch") from error
        if seam[0].receiver_cut in {trial.receiver_cut for trial in plan}:
            raise SutureError(f"--at leads to the receiver's cut '{seam[0].receiver_cut}' twice; a curve has it once")
        plan += seam
    return plan


def _shared(sender: Any, receiver: Any) -> tuple[str, ...]:
    from suture.cuts import shared

    try:
        return shared(sender.cuts, receiver.cuts)
    except CutError as error:
        in_python, here = "at=(sender cut, receiver cut)", "--at SENDER_CUT:RECEIVER_CUT"
        raise CutError(str(error).replace(in_python, here)) from error


def _models(given: list[str]) -> list[Any]:
    """The models of the strings (one, where they are equal), with their names; a random network is said to be one."""
    import torch

    from suture.seeds import derive_seed
    from suture.zoo.loading import is_random, load_model, names_apart

    texts = list(dict.fromkeys(given))
    roles = ("sender", "receiver", *range(2, len(texts)))
    models = []
    for role, text, name in zip(roles, texts, names_apart(texts), strict=False):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed("random network", role))
            models.append(load_model(text, name=name))
        if is_random(text):
            _say(f"suture: {text} names no weights, so it is a random network; give trained weights after an @")
    return models


def _finish(table: Any, folder: Path | None, as_json: bool) -> int:
    """Print the table of a curve, draw its figure, and say what failed; the exit code."""
    from suture.report import figures, screen

    files = []
    if folder is not None and (table["status"] == "ok").any():
        files += figures.save(figures.curve(table), folder / "curve")
    width = shutil.get_terminal_size().columns
    parts = [screen.curve_heading(table), screen.curve_table(table, width=width), screen.reading(table)]
    return _hand_over(table, folder, files, {} if as_json else None, [[part] for part in parts])


def _finish_matrix(table: Any, folder: Path | None, as_json: bool) -> int:
    """Print matrices and their summary by depth, draw their figure, and say what failed; the exit code."""
    from suture import table as tables
    from suture.depth import by_depth
    from suture.report import figures, grids, heatmaps

    summary = by_depth(table)
    files = []
    if folder is not None:
        files.append(tables.save(summary, folder / "depth.parquet"))
        if (table["status"] == "ok").any():
            files += figures.save(heatmaps.matrix(table), folder / "matrix")
    width = shutil.get_terminal_size().columns
    parts: list[list[Any]] = [[grids.matrix_heading(table)], grids.matrix_tables(table, width=width)]
    parts += [grids.depth_tables(table, width=width), [grids.matrix_reading(table)]]
    return _hand_over(table, folder, files, {"by_depth": _records(summary)} if as_json else None, parts)


def _hand_over(
    table: Any, folder: Path | None, drawn: list[Path], record: dict[str, Any] | None, parts: list[list[Any]]
) -> int:
    """Print the parts of a report, or its record as JSON; say which files were written, and what failed."""
    from suture.report import screen

    failed = table[table["status"] == "failed"]["trial"].nunique()
    files = [*([folder / "table.parquet"] if folder is not None else []), *drawn]
    if record is not None:
        made = {"rows": _records(table), **record, "files": [str(file) for file in files], "failed": failed}
        print(json.dumps(made, indent=2), flush=True)
    else:
        _show(*[line for part in parts if any(part) for line in ("", *part)][1:])
    for file in files:
        _say(f"wrote {file}")
    if failed:
        reasons = "; ".join(screen.failures(table))
        _say(f"suture: {failed} of {table['trial'].nunique()} trials failed: {reasons}")
    return 1 if failed else 0


def _records(table: Any) -> Any:
    return json.loads(table.to_json(orient="records", double_precision=15))


if __name__ == "__main__":
    sys.exit(main())
