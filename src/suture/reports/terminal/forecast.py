"""A forecast for the terminal, and as plain values."""

from dataclasses import asdict

from rich.table import Table
from rich.text import Text

from suture.common.sizes import in_words
from suture.runs.forecast import Forecast
from suture.runs.progress import clock

HOPELESS = 86_400.0  #: seconds, from which on remedies come first
REMEDIES = "fewer cuts, --fit quick, fewer samples, --device cuda"


def forecast_table(forecast: Forecast) -> Table:
    """Show the rest of a plan and its cost, with the budgets beside it: a line for each, at 80 columns."""
    made = Table.grid(padding=(0, 3), pad_edge=False)
    made.add_column(style="bold", no_wrap=True)
    made.add_column(justify="right", no_wrap=True)
    made.add_column(overflow="fold", style="dim")
    for line in _lines(forecast):
        made.add_row(*map(Text, line))
    return made


def record(forecast: Forecast) -> dict[str, object]:
    """Return a forecast as plain values: times in seconds, sizes in bytes."""
    computed = {"left": forecast.left, "seconds": forecast.seconds, "range": forecast.range, "ram": forecast.ram}
    return asdict(forecast) | computed


def _lines(forecast: Forecast) -> list[tuple[str, str, str]]:
    """Return rows of a quantity, its amount, and a remark."""
    again = forecast.trials - forecast.distinct
    lines = [("trials", f"{forecast.trials:,}", f"{again:,} of them the same as another" if again else "")]
    if forecast.done:
        lines.append(("already measured", f"{forecast.done:,}", ""))
    if not forecast.left:
        return [*lines, ("time left", "none", "everything is measured")]
    memory = forecast.memory
    lines += [("networks", f"{forecast.networks:,}", ""), ("images", f"{forecast.images:,}", "")]
    lines.append(("workers", f"{forecast.workers:,}", f"each up to {in_words(memory.worker + memory.peak)} of RAM"))
    if forecast.range is not None:
        least, most = map(clock, forecast.range)
        lines.append(("time left", f"{least} to {most}", "by a few timed steps; trials differ"))
        if forecast.range[0] > HOPELESS:
            lines.insert(0, ("too long here?", f"over {least}", REMEDIES))
    elif forecast.seconds is None:
        lines.append(("time left", "unknown", "the run says it after its first trials"))
    else:
        lines.append(("time left", f"about {clock(forecast.seconds)}", "if trials take as long as those measured"))
    computed = "each computed once"
    if forecast.recomputed:
        computed = f"{in_words(forecast.recomputed)} of them computed as they are read, at cuts too large to keep"
    elif forecast.activations > forecast.disk_budget:
        computed = "more than the budget: some are computed again"
    return [
        *lines,
        ("RAM, resident", in_words(forecast.ram), _within(forecast.ram_budget, "that processes may hold")),
        ("RAM, mapped", f"up to {in_words(forecast.disk)}", "files, dropped from memory when it is short"),
        ("largest trial", in_words(memory.peak), memory.largest),
        ("disk", in_words(forecast.disk), _within(forecast.disk_budget, "for activations")),
        ("activations", in_words(forecast.activations), computed),
    ]


def _within(budget: int | None, what: str = "") -> str:
    return "" if budget is None else f"of {in_words(budget)} {what}".rstrip()
