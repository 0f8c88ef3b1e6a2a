"""Indices of representational similarity: functions of two matrices, samples × features."""

from suture.measurement.indices.base import RIGID, Index, Layer, PreparedIndex, SamplesAs
from suture.measurement.indices.bases import (
    PWCCA,
    SVCCA,
    LinearRegression,
    MeanCCA,
    Procrustes,
    ProcrustesAngle,
    linear_regression,
    mean_cca,
    procrustes,
    procrustes_angle,
    pwcca,
    svcca,
)
from suture.measurement.indices.cka import RBFCKA, LinearCKA, MinibatchCKA, linear_cka, minibatch_cka, rbf_cka
from suture.measurement.indices.grams import (
    CKNNA,
    RSA,
    MutualKNN,
    UnbiasedCKNNA,
    cknna,
    cknna_unbiased,
    mutual_knn,
    rsa_pearson,
    rsa_spearman,
)
from suture.measurement.indices.outputs import disagreement, jensen_shannon
from suture.measurement.indices.predictivity import LinearPredictivity, linear_predictivity
from suture.measurement.indices.registry import INDICES

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
    "LinearPredictivity",
    "LinearRegression",
    "MeanCCA",
    "MinibatchCKA",
    "MutualKNN",
    "PreparedIndex",
    "Procrustes",
    "ProcrustesAngle",
    "SamplesAs",
    "UnbiasedCKNNA",
    "cknna",
    "cknna_unbiased",
    "disagreement",
    "jensen_shannon",
    "linear_cka",
    "linear_predictivity",
    "linear_regression",
    "mean_cca",
    "minibatch_cka",
    "mutual_knn",
    "procrustes",
    "procrustes_angle",
    "pwcca",
    "rbf_cka",
    "rsa_pearson",
    "rsa_spearman",
    "svcca",
]
