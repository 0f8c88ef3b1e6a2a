"""A benchmark for the terminal, and as plain values."""

from collections.abc import Callable
from dataclasses import asdict

from rich.table import Table
from rich.text import Text

from suture.common.sizes import in_words
from suture.report.terminal.curve import new_table
from suture.runs.bench import Result, Summary
from suture.runs.bench.summary import CONTROL_MARGIN, MARGIN, MethodSummary

_KINDS = {"float32": "fp32", "bfloat16": "bf16"}


def methods_table(summary: Summary, result: Result) -> Table:
    """Show a column per method, a row per figure; empty where no cell was measured by all."""
    made = new_table(narrow=False)
    made.add_column("", no_wrap=True)
    for method in summary.methods:
        made.add_column(Text(method.name), justify="right", overflow="fold")
    for label, told in _rows(summary, result):
        made.add_row(Text(label), *(Text(told(method)) for method in summary.methods))
    return made


def _rows(summary: Summary, result: Result) -> list[tuple[str, Callable[[MethodSummary], str]]]:
    """What is said of every method, and how."""
    whole = f"CPU s, matrix of {summary.grid}"
    return [
        ("CPU s a cell, median", lambda m: _seconds(m.cell_cpu)),
        (f"CPU s, {summary.measured} cells", lambda m: _seconds(m.cells_cpu)),
        ("CPU s shared", lambda m: _seconds(m.shared_cpu) if m.shared_cpu else "none"),
        (whole, lambda m: _seconds(m.matrix_cpu)),
        ("times cheaper", lambda m: f"{m.times_cheaper:.1f}"),
        ("wall s a cell, median", lambda m: _seconds(m.cell_wall)),
        ("steps a cell, median", lambda m: f"{m.steps:,.0f}"),
        ("mean accuracy, %", lambda m: f"{100 * m.accuracy:.2f}"),
        (f"cells ≥ plain − {MARGIN}", lambda m: f"{100 * m.good:.0f} %"),
        ("worst cell, points", lambda m: f"{m.worst_points + 0.0:+.2f}"),
        ("peak memory", lambda m: in_words(m.peak)),
        ("GFLOP/s", lambda m: "" if m.rate is None else f"{m.rate:.1f}"),
        *((f"of product, {_KINDS[kind]}", _share(peak)) for kind, peak in result.peaks.products.items()),
        *(
            (f"of convolution, {short}", _share(peak))
            for kind, short in _KINDS.items()
            if (peak := result.peaks.convolution(kind)) is not None
        ),
    ]


def _share(peak: float) -> Callable[[MethodSummary], str]:
    return lambda m: "" if m.rate is None else f"{100 * m.rate / peak:.0f} %"


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def heading(result: Result) -> str:
    """Say what was measured, on what, when and by which command."""
    subject = result.subject
    fit, validation, score = subject.images
    date, command = subject.made
    return "\n".join(
        [
            f"{subject.sender} → {subject.receiver} on {subject.data}: {fit:,} images to fit, {validation:,} to "
            f"validate, {score:,} to score; the plain loop fits on {fit + validation:,}",
            f"{subject.processor}, one thread, torch {subject.torch}, {date}",
            command,
        ]
    )


def explanation(summary: Summary, result: Result) -> str:
    """Say what the figures of the table mean, the worst cells, and what one should know besides."""
    lines = []
    if summary.measured < summary.grid:
        lines.append(
            f"The matrix has {summary.grid} cells; {summary.measured} were measured, and its cost is that of their "
            "mean and the shared work: activations at all cuts, outputs and digests, once."
        )
    lines += [
        f"{method.name}: {method.fit}; worst at {' → '.join(method.worst_seam)}" for method in summary.methods[1:]
    ]
    lines.append(_peaks_line(result))
    return "\n".join([*lines, *summary.notes])


def _peaks_line(result: Result) -> str:
    peaks = result.peaks
    said = [
        "Peaks in GFLOP/s: products of 1024³ "
        f"{peaks.products['float32']:.0f} in fp32, {peaks.products['bfloat16']:.0f} in bf16"
    ]
    said += [
        f"3×3 convolution of {shape} {rates['float32']:.0f} and {rates['bfloat16']:.0f}"
        for shape, rates in peaks.convolutions.items()
    ]
    counted = (
        "Counted are products and convolutions, a multiply-add as two, forwards and backwards; closed forms are not."
    )
    return f"{'; '.join(said)}. {counted}"


def controls_table(summary: Summary) -> Table:
    """Show a row per control: mean accuracy by the plain loop and by the default fit, and the worst cell."""
    made = new_table(narrow=False)
    for name in ("control", "plain loop, %", "default, %", "worst cell, points", "at"):
        made.add_column(name, justify="left" if name in ("control", "at") else "right", overflow="fold")
    for control in summary.controls:
        seam = " → ".join(cut or "noise" for cut in control.worst_seam)
        values = f"{100 * control.plain:.2f}", f"{100 * control.ours:.2f}", f"{control.worst_points:+.2f}"
        made.add_row(*map(Text, (control.control, *values, seam)))
    return made


def controls_words(summary: Summary) -> str:
    """Say whether any control is lower by the default fit than by the plain loop, by more than the margin."""
    low = [control.control for control in summary.controls if not control.sound]
    margin = f"{CONTROL_MARGIN:g} points"
    if low:
        return f"More than {margin} below the plain loop's somewhere: {', '.join(low)}. That flatters the result."
    return f"No control is more than {margin} below the plain loop's."


def record(summary: Summary, result: Result) -> dict[str, object]:
    """What a benchmark says, as plain values: seconds, bytes, GFLOP/s, accuracies as fractions."""
    subject = asdict(result.subject)
    date, command = subject.pop("made")
    return {
        "subject": subject | {"date": date, "command": command},
        "peaks": asdict(result.peaks),
        "shared": asdict(result.shared),
        "grid": summary.grid,
        "measured": summary.measured,
        "methods": [asdict(method) for method in summary.methods],
        "controls": [asdict(control) | {"sound": control.sound} for control in summary.controls],
        "cells": [asdict(cell) for cell in summary.cells],
        "notes": list(summary.notes),
        "failed": summary.failed,
        "errors": [
            {"seam": one.seam, "control": one.control, "method": one.method, "error": one.error}
            for one in (*result.records, *result.controls)
            if one.error is not None
        ],
    }
