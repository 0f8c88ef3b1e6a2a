"""Smith & Marcu 2024: ``experiments`` describes the paper's experiments."""

from suture_papers.smith2024.experiments import STUDIES

__all__ = ["STUDIES"]
