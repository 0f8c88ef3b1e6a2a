"""The commands about the installation itself: ``doctor`` and ``completion``."""

from collections.abc import Sequence
from typing import Any

from jsonargparse import Namespace

from suture.cli import output
from suture.cli.completion import SHELLS, complete, script, words_of
from suture.cli.output import say
from suture.cli.parser import parser
from suture.common.errors import SutureError

_MARKS = {"ok": "", "optional": "–", "missing": "✗"}


def completion(chosen: Namespace, command: str) -> int:
    """Print the script for a shell, or the completions of a line; the exit code."""
    if chosen.line is not None:
        words, last = words_of(chosen.line)
        for found in complete(parser(), words, last):
            print(found)
        return 0
    if chosen.shell is None:
        raise SutureError(f"missing SHELL, which is {', '.join(SHELLS[:-1])} or {SHELLS[-1]}")
    print(script(chosen.shell), flush=True)
    return 0


def doctor(chosen: Namespace, command: str) -> int:
    """Say what is there and what is missing; the exit code, 1 where something is missing that is needed."""
    from dataclasses import asdict

    from suture.cli.doctor import examine

    checks = examine(chosen.data, chosen.runs)
    missing = [check for check in checks if check.state == "missing"]
    if chosen.json:
        output.show_json({"sound": not missing, "checks": [asdict(check) for check in checks]})
        return 1 if missing else 0
    output.show(*_tables(checks))
    say(
        f"suture: {len(missing)} of what is needed {'is' if len(missing) == 1 else 'are'} missing (✗)"
        if missing
        else "all that is needed is there; what is marked – is for more"
    )
    return 1 if missing else 0


def _tables(checks: Sequence[Any]) -> list[Any]:
    """A table for each part, under its name."""
    from rich.table import Table
    from rich.text import Text

    shown: list[Any] = []
    longest = max(len(check.name) for check in checks if check.part != "runs")
    for part in dict.fromkeys(check.part for check in checks):
        table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
        table.add_column(width=1)
        table.add_column(min_width=longest, overflow="fold")
        table.add_column(overflow="fold")
        for check in checks:
            if check.part == part:
                found = Text("\n".join(filter(None, (check.found, check.remedy and f"→ {check.remedy}"))))
                table.add_row(_MARKS[check.state], Text(check.name), found)
        shown += ["", part, table]
    return shown[1:]
