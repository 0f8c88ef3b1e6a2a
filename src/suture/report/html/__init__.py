"""The report: one self-contained HTML page."""

from suture.report.html.page import render
from suture.report.html.runs import Run, of_study, only, read

__all__ = ["Run", "of_study", "only", "read", "render"]
