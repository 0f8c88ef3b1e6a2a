"""Bansal, Nakkiran & Barak 2021: ``section4_5`` describes the paper's experiments."""

from suture_papers.bansal2021.section4_5 import STUDIES

__all__ = ["STUDIES"]
