"""The registry of indices: each in its default settings, by its name."""

from suture.measurement.indices.base import Index
from suture.measurement.indices.bases import linear_regression, mean_cca, procrustes, procrustes_angle, pwcca, svcca
from suture.measurement.indices.cka import linear_cka, minibatch_cka, rbf_cka
from suture.measurement.indices.grams import cknna, cknna_unbiased, mutual_knn, rsa_pearson, rsa_spearman
from suture.measurement.indices.predictivity import linear_predictivity

INDICES: dict[str, Index] = {
    index.name: index
    for index in (
        *(linear_cka, minibatch_cka, rbf_cka, mean_cca, svcca, pwcca, procrustes, procrustes_angle),
        *(rsa_pearson, rsa_spearman, mutual_knn, cknna, cknna_unbiased),
        *(linear_regression, linear_predictivity),
    )
}
