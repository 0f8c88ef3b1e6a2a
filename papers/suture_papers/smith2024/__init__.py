"""Smith & Marcu 2024: what the paper did is said in ``experiments``."""

from suture_papers.smith2024.experiments import STUDIES

__all__ = ["STUDIES"]
