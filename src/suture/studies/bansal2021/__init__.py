"""Bansal, Nakkiran & Barak 2021: what the paper did is said in ``experiments``."""

from suture.studies.bansal2021.experiments import STUDIES

__all__ = ["STUDIES"]
