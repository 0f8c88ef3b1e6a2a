"""The report: one self-contained HTML page."""

from suture.reports.html.page import render
from suture.reports.html.runs import Run, of_study, only, read

__all__ = ["Run", "of_study", "only", "read", "render"]
