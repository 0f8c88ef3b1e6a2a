"""The command line: it reads what it is given, runs the command, and answers every error in one place.

Results go to standard output, everything else to standard error. Exit codes: 0 all is measured (or sound, or there), 1
some trials failed (something is damaged, or missing), 2 wrong input, a full disk or a training that diverged, 3 some
trials are not measured yet, 70 a fault of Suture's own, 130 interrupted, 141 nobody reads the results, 143 terminated.
A fault is told in one line, and with SUTURE_DEBUG=1 by its traceback. Nothing that takes long to import is imported
before a command needs it.
"""

import os
import shlex
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from suture.cli.command import print_config
from suture.cli.output import say
from suture.cli.registry import parser
from suture.common.errors import SutureError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    with _terminations() as terminated:
        try:
            return _run(given)
        except SystemExit as done:  # --help and --version; or code that we were given, with a message
            if not isinstance(done.code, int | None):
                return _refuse(str(done.code))
            return done.code or 0
        except SutureError as error:
            return _refuse(str(error))
        except KeyboardInterrupt as interruption:  # a run says how much of it is done
            say(f"suture: {in_options(str(interruption)) or 'interrupted'}")
            return 128 + (signal.SIGTERM if terminated else signal.SIGINT)
        except BrokenPipeError:  # whoever read the results has gone, as `head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        except Exception as error:
            if arguments is not None or os.environ.get("SUTURE_DEBUG"):  # whoever calls this from Python sees it all
                raise
            say(f"suture: {_fault(error)}")
            return 70


def _run(given: list[str]) -> int:
    known = parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what may come next; this does not return
        import argcomplete

        argcomplete.autocomplete(known)
    if not given:
        known.print_help(sys.stderr)
        return 2
    chosen = known.parse_args(given)
    if getattr(chosen, "print_config", False):
        print_config(chosen)
        return 0
    chosen.line = shlex.join(["suture", *given])
    with warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.simplefilter("ignore")  # those of libraries; ours are errors
        code: int = chosen.chosen.run(chosen)
        return code


def _refuse(message: str) -> int:
    say(f"suture: {' '.join(in_options(message).split())}")
    return 2


def _fault(error: Exception) -> str:
    """Return what is said of an error that nobody foresaw: what it is, and where in whose code."""
    places = traceback.extract_tb(error.__traceback__)
    at = f" at {places[-1].filename}:{places[-1].lineno}" if places else ""
    said = ": ".join(filter(None, (type(error).__name__, " ".join(str(error).split()))))
    return f"a fault, of Suture or of code that it was given: {said}{at}; SUTURE_DEBUG=1 shows its traceback"


@contextmanager
def _terminations() -> Iterator[list[int]]:
    """Have a request to terminate end a command as Ctrl-C does; give a list that is empty until there is one."""
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


#: What errors of the package call arguments of functions, and what the command line calls them.
_OPTIONS = {
    "at=[(sender cut, receiver cut)]": "--at SENDER_CUT:RECEIVER_CUT",
    "size=… resizes": "--size PIXELS resizes",
    "use Unchanged()": "choose a recipe that leaves samples as they are, such as digits",
    "samples_as='flattened'": "--samples-as flattened",
    "(Relabelled(…, everywhere=True)), or leave out on=": "(relabelled,…,everywhere=True), or none",
    "data.limited(fit=…)": "--fit-samples N",
    "give a store=": "give --out FOLDER",
    "; those that are no result of training can be named: constants=(…)": ", or leave the untrained controls out, "
    "--controls itself,shuffled-pairs,clustered-noise",
} | {
    f" {name}={after}": f" --{name}{after or ' '}"
    for name in ("chance", "size", "classes", "margin")
    for after in (";", " ", "")
}


def in_options(message: str) -> str:
    """Return the message with settings as the command line has them."""
    for in_python, here in _OPTIONS.items():
        message = message.replace(in_python, here)
    return message


if __name__ == "__main__":
    sys.exit(main())
