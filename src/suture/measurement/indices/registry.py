"""The registry of indices: each in its default settings, by its name."""

from suture.measurement.indices.base import Index
from suture.measurement.indices.cca import mean_cca, pwcca, svcca
from suture.measurement.indices.cka import linear_cka
from suture.measurement.indices.neighbours import cknna, mutual_knn
from suture.measurement.indices.procrustes import linear_regression, procrustes, procrustes_angle
from suture.measurement.indices.rbf_cka import rbf_cka
from suture.measurement.indices.rsa import rsa_pearson, rsa_spearman

INDICES: dict[str, Index] = {
    index.name: index
    for index in (
        *(linear_cka, rbf_cka, mean_cca, svcca, pwcca, procrustes, procrustes_angle),
        *(rsa_pearson, rsa_spearman, mutual_knn, cknna, linear_regression),
    )
}
