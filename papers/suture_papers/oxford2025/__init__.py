"""The Oxford thesis of 2025: ``experiments`` describes its experiments."""

from suture_papers.oxford2025.experiments import STUDIES

__all__ = ["STUDIES"]
