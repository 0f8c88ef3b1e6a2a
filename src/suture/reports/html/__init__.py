"""The report: one self-contained HTML page."""

from suture.reports.html.page import check_file, render
from suture.reports.html.runs import Run, read

__all__ = ["Run", "check_file", "read", "render"]
