"""The Oxford thesis of 2025: what the paper did is said in ``experiments``."""

from suture_papers.oxford2025.experiments import STUDIES

__all__ = ["STUDIES"]
