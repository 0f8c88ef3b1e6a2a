"""Indices of representational similarity: functions of two matrices, samples × features."""

from suture.measurement.indices.base import RIGID, Index, PreparedIndex
from suture.measurement.indices.cca import PWCCA, SVCCA, MeanCCA, mean_cca, pwcca, svcca
from suture.measurement.indices.cka import LinearCKA, linear_cka, linear_cka_all
from suture.measurement.indices.layers import Layer, SamplesAs
from suture.measurement.indices.neighbours import CKNNA, MutualKNN, cknna, mutual_knn
from suture.measurement.indices.procrustes import (
    LinearRegression,
    Procrustes,
    ProcrustesAngle,
    linear_regression,
    procrustes,
    procrustes_angle,
)
from suture.measurement.indices.rbf_cka import RBFCKA, rbf_cka
from suture.measurement.indices.registry import INDICES
from suture.measurement.indices.rsa import RSA, rsa_pearson, rsa_spearman

__all__ = [
    "CKNNA",
    "INDICES",
    "PWCCA",
    "RBFCKA",
    "RIGID",
    "RSA",
    "SVCCA",
    "Index",
    "Layer",
    "LinearCKA",
    "LinearRegression",
    "MeanCCA",
    "MutualKNN",
    "PreparedIndex",
    "Procrustes",
    "ProcrustesAngle",
    "SamplesAs",
    "cknna",
    "linear_cka",
    "linear_cka_all",
    "linear_regression",
    "mean_cca",
    "mutual_knn",
    "procrustes",
    "procrustes_angle",
    "pwcca",
    "rbf_cka",
    "rsa_pearson",
    "rsa_spearman",
    "svcca",
]
