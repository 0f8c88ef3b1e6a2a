"""Hernandez et al. 2022: what the paper did is said in ``experiments``."""

from suture_papers.hernandez2022.experiments import STUDIES

__all__ = ["STUDIES"]
