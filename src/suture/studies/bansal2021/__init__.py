"""Bansal, Nakkiran & Barak 2021: what the paper did is said in ``experiments``."""

from suture.studies.bansal2021.section4_5 import STUDIES

__all__ = ["STUDIES"]
