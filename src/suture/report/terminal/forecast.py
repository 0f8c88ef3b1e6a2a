"""A forecast for the terminal, and as plain values."""

from rich.table import Table
from rich.text import Text

from suture.common.sizes import in_words
from suture.runs.forecasts import Forecast
from suture.runs.runners.progress import clock


def forecast_table(forecast: Forecast) -> Table:
    """Show what is left of a plan and what it takes, with the budgets beside it: a line for each, at 80 columns."""
    made = Table.grid(padding=(0, 3), pad_edge=False)
    made.add_column(style="bold", no_wrap=True)
    made.add_column(justify="right", no_wrap=True)
    made.add_column(overflow="fold", style="dim")
    for line in _lines(forecast):
        made.add_row(*map(Text, line))
    return made


def record(forecast: Forecast) -> dict[str, object]:
    """What a forecast says, as plain values: times in seconds, sizes in bytes, budgets that are not set ``None``."""
    held = forecast.footprint
    return {
        "trials": forecast.trials,
        "distinct": forecast.distinct,
        "done": forecast.done,
        "left": forecast.left,
        "workers": forecast.workers,
        "seconds": round(forecast.seconds, 1),
        "cpu_seconds": round(forecast.cpu_seconds, 1),
        "ram": forecast.ram,
        "ram_per_worker": forecast.ram_per_worker,
        "ram_budget": forecast.ram_budget,
        "largest": {"trial": held.largest, "ram": held.peak},
        "disk": forecast.disk,
        "activations": forecast.activations,
        "disk_budget": forecast.disk_budget,
    }


def _lines(forecast: Forecast) -> list[tuple[str, str, str]]:
    """What, how much, and what there is to say of it."""
    again = forecast.trials - forecast.distinct
    lines = [("trials", f"{forecast.trials:,}", f"{again:,} of them the same as another" if again else "")]
    if forecast.done:
        lines.append(("already measured", f"{forecast.done:,}", ""))
    if not forecast.left:
        return [*lines, ("time left", "none", "everything is measured")]
    one = clock(forecast.cpu_seconds)
    held = forecast.footprint
    return [
        *lines,
        ("workers", f"{forecast.workers:,}", f"each up to {in_words(forecast.ram_per_worker)} of RAM"),
        ("time left", f"about {clock(forecast.seconds)}", f"{one} of one core" if forecast.workers > 1 else ""),
        ("RAM", in_words(forecast.ram), _within(forecast.ram_budget)),
        ("largest trial", in_words(held.peak), held.largest),
        ("disk", in_words(forecast.disk), _within(forecast.disk_budget, "for activations")),
        ("activations", in_words(forecast.activations), _kept(forecast)),
    ]


def _within(budget: int | None, what: str = "") -> str:
    return "" if budget is None else f"of {in_words(budget)} {what}".rstrip()


def _kept(forecast: Forecast) -> str:
    """What becomes of activations that the budget does not hold."""
    if forecast.disk_budget is None or forecast.activations <= forecast.disk_budget:
        return "each computed once"
    return "more than the budget: some are computed again"
