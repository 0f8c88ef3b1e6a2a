"""The command line.

Results go to standard output, everything else to standard error. Exit codes: 0 all is measured (or sound, or there), 1
some trials failed (something is damaged, or missing), 2 wrong input, or what cannot go on (a full disk, a training that
diverged), 3 some trials are not measured yet, 70 a fault of Suture's own, 130 interrupted, 141 nobody reads the
results, 143 terminated. A fault is told in one line, and with SUTURE_DEBUG=1 by its traceback. Nothing that takes
long to import is imported before a command needs it.
"""

import os
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from jsonargparse import ArgumentError, Namespace

from suture.cli import (
    data_commands,
    export_commands,
    output,
    report_commands,
    setup_commands,
    store_commands,
    study_commands,
    zoo_commands,
)
from suture.cli import evidence_commands as comparing_commands
from suture.cli import measure_commands as measuring_commands
from suture.cli import train_commands as training_commands
from suture.cli.output import say
from suture.cli.parser import COMMANDS, parser, plainly
from suture.cli.suggestions import in_options
from suture.common.errors import SutureError

Command = Callable[[Namespace, str], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    command = shlex.join(["suture", *given])
    with _terminations() as terminated:
        try:
            return _run(given, command)
        except ArgumentError as error:
            return _refuse(plainly(str(error), given))
        except SystemExit as done:  # --help, --version and --print_config
            if not isinstance(done.code, int | None):  # of code that we were given
                return _refuse(str(done.code))
            return done.code or 0
        except SutureError as error:
            return _refuse(in_options(str(error)))
        except KeyboardInterrupt as interruption:
            say(f"suture: {_interrupted(str(interruption))}")
            return 128 + (signal.SIGTERM if terminated else signal.SIGINT)
        except BrokenPipeError:  # whoever read the results has gone, as `head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        except Exception as error:
            if arguments is not None or os.environ.get("SUTURE_DEBUG"):  # whoever calls this from Python sees it all
                raise
            say(f"suture: {_fault(error)}")
            return 70


def _run(given: list[str], command: str) -> int:
    known = parser()
    if not given:
        known.print_help(sys.stderr)
        return 2
    chosen = known.parse_args(given)
    for option in ("out", "csv"):
        if chosen[chosen.command].get(option) == "":
            raise SutureError(f"--{option} '' names nothing; give a path, or leave the option out")
    with warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.simplefilter("ignore")  # those of libraries; ours are errors
        return dict(zip(COMMANDS, _COMMANDS, strict=True))[chosen.command](chosen[chosen.command], command)


def _fault(error: Exception) -> str:
    """What is said of an error that nobody foresaw: what it is, and where in whose code."""
    import traceback

    places = traceback.extract_tb(error.__traceback__)
    where = f" at {places[-1].filename}:{places[-1].lineno}" if places else ""
    said = ": ".join(filter(None, (type(error).__name__, " ".join(str(error).split()))))
    return f"a fault, of Suture or of code that it was given: {said}{where}; SUTURE_DEBUG=1 shows its traceback"


def _refuse(message: str) -> int:
    say(f"suture: {' '.join(message.split())}")
    return 2


@contextmanager
def _terminations() -> Iterator[list[int]]:
    """Have a request to terminate end a command as Ctrl-C does; gives a list that is empty until there is one."""
    received: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        received.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # only there may signals be handled
        yield received
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupted(message: str) -> str:
    """What is said of an interruption; a run says how much is done."""
    return in_options(message) or "interrupted"


def _cuts(chosen: Namespace, command: str) -> int:
    import torch

    from suture.report.terminal.curve import cuts_table, dropped_table
    from suture.zoo.load import image_shape, load_model

    model = load_model(chosen.model)
    shape = _shape(chosen.shape) if chosen.shape is not None else image_shape(chosen.model)
    random = torch.Generator().manual_seed(0)
    values, kind = (256, torch.uint8) if len(shape) == 3 else (2, torch.int64)
    network = model.network(torch.randint(0, values, (4, *shape), dtype=kind, generator=random))
    if chosen.json:
        output.show_json(_cuts_record(network, shape))
        return 0
    dropped = network.cuts.dropped
    refused = "".join(f"; {backend} could not: {reason}" for backend, reason in network.refused.items())
    said = f"{len(network.cuts)} cuts of {network.name} by {network.backend}{refused}, each verified bit for bit"
    if dropped:
        said += f"; {len(dropped)} other tensors are no cuts" + ("" if chosen.dropped else ", --dropped says why")
    more = ["", dropped_table(network.cuts)] if chosen.dropped and dropped else []
    output.show(cuts_table(network.cuts), "", said, *more)
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
    if len(sizes) not in (1, 3) or not all(size.strip().isdecimal() and int(size) > 0 for size in sizes):
        raise SutureError(
            f"--shape {text}: give channels, height and width of one image, such as 3x224x224, or how many tokens a "
            "sequence has"
        )
    return tuple(int(size) for size in sizes)


_COMMANDS: tuple[Command, ...] = (
    measuring_commands.demo,
    _cuts,
    measuring_commands.curve,
    measuring_commands.matrix,
    comparing_commands.localise,
    comparing_commands.compare,
    comparing_commands.complexity,
    measuring_commands.plan,
    store_commands.status,
    store_commands.table,
    comparing_commands.explain,
    store_commands.verify,
    data_commands.data,
    training_commands.train,
    zoo_commands.zoo,
    study_commands.studies,
    study_commands.run,
    study_commands.claims,
    report_commands.report,
    export_commands.export,
    setup_commands.doctor,
    setup_commands.completion,
)

if __name__ == "__main__":
    sys.exit(main())
