"""Indices of representational similarity: functions of two matrices, samples × features."""

from suture.indices.cka import linear_cka, linear_cka_all
from suture.indices.matrices import Layer, SamplesAs

__all__ = ["Layer", "SamplesAs", "linear_cka", "linear_cka_all"]
