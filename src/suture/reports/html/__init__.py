"""The report: one self-contained HTML page."""

from suture.reports.html.page import render
from suture.reports.html.runs import Run, read

__all__ = ["Run", "read", "render"]
