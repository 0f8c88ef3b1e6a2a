"""Data sets, for the terminal."""

import pandas as pd
from rich.table import Table

from suture.reports.terminal.curve import lay_out


def labels_table(counts: pd.DataFrame) -> Table:
    """Show how many samples of every class are in every role: ``counts`` has a row per role, a column per class."""
    rows = ((name, *(f"{int(n):,}" for n in counts[name])) for name in counts.columns)
    return lay_out(("class", *(f">{role}" for role in counts.index)), rows)
