"""Indices of representational similarity: functions of two matrices, samples × features."""

from suture.indices.aligned import (
    LinearRegression,
    Procrustes,
    ProcrustesAngle,
    linear_regression,
    procrustes,
    procrustes_angle,
)
from suture.indices.canonical import PWCCA, SVCCA, MeanCCA, mean_cca, pwcca, svcca
from suture.indices.cka import LinearCKA, linear_cka, linear_cka_all
from suture.indices.dissimilarities import RSA, rsa_pearson, rsa_spearman
from suture.indices.index import RIGID, Index, PreparedIndex
from suture.indices.kernels import RBFCKA, rbf_cka
from suture.indices.matrices import Layer, SamplesAs
from suture.indices.neighbours import CKNNA, MutualKNN, cknna, mutual_knn
from suture.indices.ready import READY

__all__ = [
    "CKNNA",
    "PWCCA",
    "RBFCKA",
    "READY",
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
