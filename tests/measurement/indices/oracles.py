"""Every index computed by somebody else's code, or as its paper writes it, from two float64 arrays, samples × features.

Nothing here imports suture.
"""

import hashlib
import warnings
from collections.abc import Callable
from math import acos

import cka as pytorch_cka
import numpy as np
import scipy.linalg
import scipy.spatial
import scipy.stats
import torch
from scipy.spatial.distance import pdist, squareform
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.metrics import r2_score
from sklearn.neighbors import NearestNeighbors

Array = np.ndarray


def centred(x: Array) -> Array:
    return x - x.mean(0)


# --- kernels ----------------------------------------------------------------------------------------------------------


def gaussian(x: Array, bandwidth: float) -> Array:
    distances = pdist(x)
    return squareform(np.exp(-(distances**2) / (2 * (bandwidth * np.median(distances)) ** 2))) + np.eye(len(x))


def biased(k: Array, l: Array) -> float:  # noqa: E741
    h = np.eye(len(k)) - 1 / len(k)
    return float(np.trace(k @ h @ l @ h) / np.sqrt(np.trace(k @ h @ k @ h) * np.trace(l @ h @ l @ h)))


def debiased(k: Array, l: Array) -> float:  # noqa: E741
    """By pytorch-cka's estimate of HSIC."""
    across, own, others = pytorch_cka.hsic(torch.from_numpy(k)[None], torch.from_numpy(l)[None])
    return float(across / (own * others).sqrt())


def linear_cka(x: Array, y: Array) -> float:
    x, y = centred(x), centred(y)
    return biased(x @ x.T, y @ y.T)


def linear_cka_debiased(x: Array, y: Array) -> float:
    return float(pytorch_cka.cka_from_features(torch.from_numpy(x), torch.from_numpy(y)))


def rbf_cka(x: Array, y: Array, bandwidth: float = 0.5) -> float:
    return biased(gaussian(x, bandwidth), gaussian(y, bandwidth))


def rbf_cka_debiased(x: Array, y: Array) -> float:
    return debiased(gaussian(x, 0.5), gaussian(y, 0.5))


# --- subspaces --------------------------------------------------------------------------------------------------------


def mean_cca(x: Array, y: Array) -> float:
    return float(np.cos(scipy.linalg.subspace_angles(centred(x), centred(y))).mean())


def svcca(x: Array, y: Array, variance: float = 0.99) -> float:
    return mean_cca(*(PCA(variance, svd_solver="full").fit_transform(of) for of in (x, y)))


def pwcca(x: Array, y: Array) -> float:
    """Morcos et al. 2018, as in their code: whitened covariances, the side with fewer neurons, weights by neuron."""
    if x.shape[1] > y.shape[1]:
        x, y = y, x
    x, y = centred(x).T, centred(y).T
    white = [scipy.linalg.inv(scipy.linalg.sqrtm(of @ of.T)) for of in (x, y)]
    u, rho, _ = np.linalg.svd(white[0] @ (x @ y.T) @ white[1], full_matrices=False)
    weights = np.zeros(len(rho))
    for i in range(len(rho)):
        direction = u[:, i] @ white[0] @ x
        direction = direction / np.linalg.norm(direction)
        for neuron in x:
            weights[i] += abs(direction @ neuron)
    return float((weights / weights.sum()) @ rho)


def procrustes(x: Array, y: Array) -> float:
    widths = max(x.shape[1], y.shape[1])
    x, y = (np.pad(of, ((0, 0), (0, widths - of.shape[1]))) for of in (x, y))
    return float(np.sqrt(1 - scipy.spatial.procrustes(x, y)[2]))


def procrustes_angle(x: Array, y: Array) -> float:
    """By the rotation that scipy finds for the scaled matrices."""
    x, y = (centred(of) / np.linalg.norm(centred(of)) for of in (x, y))
    widths = max(x.shape[1], y.shape[1])
    x, y = (np.pad(of, ((0, 0), (0, widths - of.shape[1]))) for of in (x, y))
    turn, _ = scipy.linalg.orthogonal_procrustes(x, y)
    return acos(1 - np.linalg.norm(x @ turn - y) ** 2 / 2)


def linear_regression(x: Array, y: Array) -> float:
    fitted = LinearRegression().fit(x, y).predict(x)
    return float(r2_score(y, fitted, multioutput="variance_weighted" if y.shape[1] > 1 else "uniform_average"))


def parts(n: int, folds: int = 5) -> list[Array]:
    """The images that are held out in turn: a random order, from a seed that their number gives."""
    seed = int(hashlib.sha256(repr(("folds", n)).encode()).hexdigest()[:16], 16) >> 1
    return np.array_split(torch.randperm(n, generator=torch.Generator().manual_seed(seed)).numpy(), folds)


def linear_predictivity(x: Array, y: Array) -> float:
    """By scikit-learn's ridge regression, each penalty's generalised cross-validation by the hat matrix itself."""
    predicted = np.empty_like(y)
    for held in parts(len(x)):
        a, b = np.delete(x, held, 0), np.delete(y, held, 0)
        of_penalty = []
        for power in np.arange(-6, 2.5, 0.5):
            ridge = Ridge(10**power * np.mean(np.sum(centred(a) ** 2, 1)), solver="svd")
            hat = ridge.fit(a, np.eye(len(a))).predict(a)
            error = np.sum((b - hat @ b) ** 2) / (len(a) - np.trace(hat)) ** 2
            of_penalty.append((error, ridge.fit(a, b).predict(x[held]).reshape(len(held), -1)))
        predicted[held] = min(of_penalty, key=lambda of: of[0])[1]
    return float(r2_score(y, predicted, multioutput="variance_weighted" if y.shape[1] > 1 else "uniform_average"))


# --- dissimilarities and neighbours -----------------------------------------------------------------------------------


def rsa(x: Array, y: Array, compared: str) -> float:
    """By rsatoolbox, dissimilarities by correlation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from rsatoolbox.data import Dataset
        from rsatoolbox.rdm import calc_rdm, compare

        rdms = [calc_rdm(Dataset(of), method="correlation") for of in (x, y)]
        return float(compare(*rdms, method=compared).item())


def rsa_euclidean(x: Array, y: Array) -> float:
    return float(scipy.stats.pearsonr(pdist(x), pdist(y)).statistic)


def rsa_euclidean_spearman(x: Array, y: Array) -> float:
    return float(scipy.stats.spearmanr(pdist(x), pdist(y)).statistic)


def neighbours(x: Array, k: int, metric: str) -> list[set[int]]:
    found = NearestNeighbors(n_neighbors=k, metric=metric, algorithm="brute").fit(x).kneighbors(return_distance=False)
    return [set(map(int, row)) for row in found]


def mutual_knn(x: Array, y: Array, k: int = 10, metric: str = "cosine") -> float:
    pairs = zip(neighbours(x, k, metric), neighbours(y, k, metric), strict=True)
    return float(np.mean([len(a & b) / k for a, b in pairs]))


def cknna(x: Array, y: Array, k: int = 10) -> float:
    """Huh et al. 2024, appendix A, term by term."""
    x, y = (of / np.linalg.norm(of, axis=1, keepdims=True) for of in (x, y))
    near_x, near_y = neighbours(x, k, "cosine"), neighbours(y, k, "cosine")
    n = len(x)

    def align(a: Array, near_a: list[set[int]], b: Array, near_b: list[set[int]]) -> float:
        total = 0.0
        for i in range(n):
            mean_a, mean_b = (np.mean([of[i] @ of[m] for m in range(n)]) for of in (a, b))
            for j in near_a[i] & near_b[i]:
                total += (a[i] @ a[j] - mean_a) * (b[i] @ b[j] - mean_b)
        return total

    across = align(x, near_x, y, near_y)
    return across / np.sqrt(align(x, near_x, x, near_x) * align(y, near_y, y, near_y))


def cknna_unbiased(x: Array, y: Array, k: int = 10) -> float:
    """As ``metrics.py`` of minyoungg/platonic-rep does it, without the 1e-6 of its denominator."""
    x, y = (of / np.linalg.norm(of, axis=1, keepdims=True) for of in (x, y))
    n = len(x)

    def nearest(kernel: Array) -> Array:
        others = np.where(np.eye(n), -np.inf, kernel)
        return others >= np.sort(others, 1)[:, -k, None]

    def align(a: Array, b: Array) -> float:
        both = nearest(a) & nearest(b)
        a, b = both * a, both * b
        whole = a.sum() * b.sum() / ((n - 1) * (n - 2)) - 2 * (a @ b).sum() / (n - 2)
        return float(((a * b.T).sum() + whole) / (n * (n - 3)))

    a, b = x @ x.T, y @ y.T
    return align(a, b) / np.sqrt(align(a, a) * align(b, b))


#: By the name of the index.
ORACLES: dict[str, Callable[[Array, Array], float]] = {
    "linear_cka": linear_cka,
    "linear_cka(debiased=True)": linear_cka_debiased,
    "minibatch_cka": linear_cka_debiased,  # of fewer images than a batch
    "rbf_cka": rbf_cka,
    "rbf_cka(bandwidth=0.2)": lambda x, y: rbf_cka(x, y, 0.2),
    "rbf_cka(debiased=True)": rbf_cka_debiased,
    "mean_cca": mean_cca,
    "svcca": svcca,
    "svcca(variance=0.8)": lambda x, y: svcca(x, y, 0.8),
    "pwcca": pwcca,
    "procrustes": procrustes,
    "procrustes_angle": procrustes_angle,
    "rsa_pearson": lambda x, y: rsa(x, y, "corr"),
    "rsa_spearman": lambda x, y: rsa(x, y, "spearman"),
    "rsa_pearson(dissimilarity='euclidean')": rsa_euclidean,
    "rsa_spearman(dissimilarity='euclidean')": rsa_euclidean_spearman,
    "mutual_knn": mutual_knn,
    "mutual_knn(k=3)": lambda x, y: mutual_knn(x, y, 3),
    "mutual_knn(nearest='euclidean')": lambda x, y: mutual_knn(x, y, metric="euclidean"),
    "cknna": cknna,
    "cknna(k=4)": lambda x, y: cknna(x, y, 4),
    "cknna_unbiased": cknna_unbiased,
    "linear_regression": linear_regression,
    "linear_predictivity": linear_predictivity,
    "linear_predictivity(reverse=True)": lambda x, y: linear_predictivity(y, x),
}
