"""Hernandez et al. 2022: ``experiments`` describes the paper's experiments."""

from suture_papers.hernandez2022.experiments import STUDIES

__all__ = ["STUDIES"]
