"""Samples in three roles (fit, validation, score) and their task: sources, preprocessing, changes of data, noise."""

from suture.data.roles import Data
from suture.data.samples import Samples
from suture.data.sources import load_data, load_views

__all__ = ["Data", "Samples", "load_data", "load_views"]
