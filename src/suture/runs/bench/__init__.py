"""Benchmarks: the same measurements by this library and by the loops that people write, side by side."""

from suture.runs.bench.matrix import Benchmark, Result, benchmark, run
from suture.runs.bench.methods import DEFAULT, Method, least_squares_then_adam, methods_for
from suture.runs.bench.peaks import Peaks, measure_peaks
from suture.runs.bench.plain_loop import Plain, PlainResult, measure_plain, plain_stitch
from suture.runs.bench.records import Folder, Record, Shared, Subject
from suture.runs.bench.summary import Summary, summarise

__all__ = [
    "DEFAULT",
    "Benchmark",
    "Folder",
    "Method",
    "Peaks",
    "Plain",
    "PlainResult",
    "Record",
    "Result",
    "Shared",
    "Subject",
    "Summary",
    "benchmark",
    "least_squares_then_adam",
    "measure_peaks",
    "measure_plain",
    "methods_for",
    "plain_stitch",
    "run",
    "summarise",
]
