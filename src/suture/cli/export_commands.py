"""The command that hands a run's table to other tools, ``export``, and what it takes."""

import os
import shlex
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from suture.cli import output
from suture.cli.options import add_json, new_parser
from suture.cli.output import say
from suture.common.errors import SutureError

#: What there is to export to: the keys of ``export.FILES`` and ``TRACKERS``, which takes long to import.
TO = ("csv", "parquet", "feather", "mlflow", "wandb", "tensorboard")


def export_parser() -> ArgumentParser:
    """Make the parser of ``suture export``."""
    parser = new_parser(
        "Hand the table of a run to other tools: as files for pandas, polars and R, or to a tracker of experiments. "
        "Trackers get means over seeds, a line for each control along the cuts, and the figures. Nothing is sent "
        "anywhere unless an address is given, or --online.",
        "suture export runs/ab --to csv",
        "suture export runs/ab --to feather --out for-r",
        "suture export runs/ab --to mlflow --out http://localhost:5000",
        "suture export runs/ab --to wandb --project stitching",
        "suture export results/small/bansal-2C.trials.parquet --to csv --out .",
    )
    add = parser.add_argument
    add("folder", type=str, metavar="FOLDER", help="of a run or of tables; or one table, a parquet file")
    add("--to", type=str, required=True, metavar="TOOL", help=f"{', '.join(TO[:-1])} or {TO[-1]}")
    out = (
        "folder for what is written, by default FOLDER, or FOLDER/tensorboard; of MLflow a folder or its tracking "
        "URI, by default MLFLOW_TRACKING_URI or else FOLDER/mlruns"
    )
    add("--out", type=str, default=None, metavar="FOLDER", help=out)
    project = "of wandb, or experiment of MLflow; by default suture"
    add("--project", type=str, default=None, metavar="NAME", help=project)
    add("--online", action="store_true", help="send it to Weights & Biases, instead of keeping it for wandb sync")
    add_json(parser)
    return parser


def export(chosen: Namespace, command: str) -> int:
    """Hand a run's table to a tool; the exit code."""
    _check(chosen)
    from suture.report import export as exporting

    run = exporting.read(chosen.folder)
    path = Path(chosen.folder).expanduser()
    out = chosen.out or str(path if path.is_dir() else path.parent)
    record = _files(run, chosen.to, out) if chosen.to in exporting.FILES else _tracked(run, chosen, out)
    if chosen.json:
        output.show_json(record)
    return 0


def _check(chosen: Namespace) -> None:
    from difflib import get_close_matches

    if chosen.to not in TO:
        near = get_close_matches(chosen.to, TO, 1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise SutureError(f"--to {chosen.to}: {meant}give one of {', '.join(TO)}")
    for option, given, tools in (("online", chosen.online, TO[4:5]), ("project", chosen.project, TO[3:5])):
        if given and chosen.to not in tools:
            raise SutureError(f"--{option} is for --to {' and '.join(tools)}; leave it out")


def _files(run: Any, kind: str, out: str) -> dict[str, object]:
    from suture.report import export as exporting

    written = [str(path) for path in exporting.write_files(run, kind, out)]
    for path in written:
        say(f"wrote {path}")
    return {"to": kind, "files": written}


def _tracked(run: Any, chosen: Namespace, out: str) -> dict[str, object]:
    """Export to a tracker, and say how to look at it."""
    from suture.report import export as exporting

    project = chosen.project or "suture"
    if chosen.to == "mlflow":
        default = None if os.environ.get("MLFLOW_TRACKING_URI") else f"{out}/mlruns"
        address, number = exporting.to_mlflow(run, chosen.out or default, project)
        say(f"wrote run {number} of experiment {project} to {address}; look at it: {_mlflow_ui(address)}")
        return {"to": "mlflow", "address": address, "run": number, "experiment": project}
    if chosen.to == "wandb":
        folder = exporting.to_wandb(run, out, project, online=chosen.online)
        sent = "and sent it" if chosen.online else f"nothing is sent yet: {shlex.join(['wandb', 'sync', str(folder)])}"
        say(f"wrote {folder}; {sent}")
    else:
        folder = exporting.to_tensorboard(run, chosen.out or f"{out}/tensorboard")
        say(f"wrote {folder}; look at it: {shlex.join(['tensorboard', '--logdir', str(folder)])}")
    return {"to": chosen.to, "folder": str(folder)}


def _mlflow_ui(address: str) -> str:
    if address.startswith("http"):
        return address
    allowed = "MLFLOW_ALLOW_FILE_STORE=true " if address.startswith("file:") else ""
    return f"{allowed}{shlex.join(['mlflow', 'ui', '--backend-store-uri', address])}"
