"""The indices as they are usually asked for, by name."""

from suture.indices.aligned import linear_regression, procrustes, procrustes_angle
from suture.indices.canonical import mean_cca, pwcca, svcca
from suture.indices.cka import linear_cka
from suture.indices.dissimilarities import rsa_pearson, rsa_spearman
from suture.indices.index import Index
from suture.indices.kernels import rbf_cka
from suture.indices.neighbours import cknna, mutual_knn

#: Every index in its default settings, by its name.
READY: dict[str, Index] = {
    index.name: index
    for index in (
        *(linear_cka, rbf_cka, mean_cca, svcca, pwcca, procrustes, procrustes_angle),
        *(rsa_pearson, rsa_spearman, mutual_knn, cknna, linear_regression),
    )
}
