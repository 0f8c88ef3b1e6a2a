"""``suture plan curve`` and ``suture plan matrix``: what these commands will cost."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from suture.cli import curve, matrix, output
from suture.cli.command import Command
from suture.common.sizes import parse_size

ABOUT = (
    "say what a curve or a matrix will cost, and measure nothing",
    "Say what a curve or a matrix will cost, in time, RAM and disk, before anything of it is measured.",
    "suture plan curve zoo:resnet@a.pt zoo:resnet@b.pt --data cifar10 --workers 8",
)
_ASK = {"plan curve": curve.ask, "plan matrix": matrix.ask}


def run(chosen: Namespace) -> int:
    """Say what a command will cost, measure nothing, and return the exit code."""
    from suture.report.terminal import forecast as forecasts
    from suture.runs.forecast import forecast
    from suture.runs.store.store import settings_of

    asked = _ASK[chosen.chosen.name](chosen, _there)
    if asked.store is not None:  # refuse another run's store, as measuring would
        asked.store.plans.check({trial.key for trial in asked.trials}, settings_of(asked.trials), chosen.extend)
    ram, disk = (parse_size(size) if size is not None else None for size in (chosen.ram, chosen.disk))
    made = forecast(asked.trials, store=asked.store, workers=chosen.workers, ram=ram, disk=disk, retry=chosen.retry)
    if chosen.json:
        output.show_json(forecasts.record(made))
    else:
        output.show(forecasts.forecast_table(made))
    return 0


def _there(folder: str) -> Any:
    """Return the store in a folder, if there is one already."""
    from suture.runs.store.files import writing_to
    from suture.runs.store.store import LABEL, Store

    path = Path(folder).expanduser()
    with writing_to(path):
        if path.is_file():
            raise FileExistsError
    return Store(folder) if (path / LABEL).exists() else None


COMMANDS = tuple(
    Command(
        name=f"plan {planned.name}",
        help=f"say what suture {planned.name} will cost",
        about=f"Say what suture {planned.name} will cost with the same arguments, in time, RAM and disk, and measure "
        "nothing. What is measured in the folder --out already counts as done.",
        examples=(planned.examples[0].replace("suture ", "suture plan "),),
        options=planned.options,
        run=run,
    )
    for planned in (curve.COMMAND, matrix.COMMAND)
)
