"""The Oxford thesis of 2025: what the paper did is said in ``experiments``."""

from suture.studies.oxford2025.experiments import STUDIES

__all__ = ["STUDIES"]
