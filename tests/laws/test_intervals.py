"""A 95 % interval holds the truth in 95 % of test sets.

Evidence. The interval of 0/1 values depends on counts alone, so its coverage is a finite sum: every count
that can come up goes through the public function, and the probabilities (scipy's) of those whose interval
holds the truth are added up. No simulation error is left. The loss has no such sum and is simulated. The ends
themselves are checked against scipy's intervals, a numerical maximum likelihood, and published tables.
"""

from functools import cache

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq, minimize_scalar
from scipy.special import xlogy

from loops import each
from suture.common.errors import DataError, FitError
from suture.measurement.scores.intervals import Estimate, mean_interval, paired_interval, t_interval

N = 1000
REPLICATIONS = 2000


def outcomes(ones, n=N):
    return np.arange(n) < ones


def pairs(only_a, only_b, n=N):
    """Two networks, a right alone ``only_a`` times and b ``only_b`` times; on the rest both are right."""
    a, b = np.ones(n), np.ones(n)
    b[:only_a] = 0
    a[only_a : only_a + only_b] = 0
    return a, b


@cache
def paired(only_a, only_b):
    return paired_interval(*pairs(only_a, only_b), seed=0)


@cache
def single_ends():
    """Both ends of the interval for each count of ones, shape (2, n + 1)."""
    return np.array([mean_interval(outcomes(k), seed=0)[:2] for k in range(N + 1)]).T


def coverage(accuracy):
    low, high = single_ends()
    holds = (low <= accuracy) & (accuracy <= high)
    return float(stats.binom.pmf(np.arange(N + 1), N, accuracy)[holds].sum())


def paired_coverage(p, q):
    """Bounds on P(the interval holds p − q), for P(only a right) = p and P(only b right) = q.

    Counts rarer than 2·10⁻⁷ each are skipped: in the lower bound they count as missed, in the upper as held.
    """
    top_a, top_b = stats.binom.ppf(1 - 1e-9, N, [p, q]).astype(int)
    only_a, only_b = np.arange(top_a + 1)[:, None], np.arange(top_b + 1)
    mass = stats.binom.pmf(only_a, N, p) * stats.binom.pmf(only_b, N - only_a, q / (1 - p))
    held = seen = 0.0
    for i, j in np.argwhere(mass > 2e-7).tolist():
        low, high, _ = paired(i, j)
        seen += mass[i, j]
        held += mass[i, j] * (low - 1e-12 <= p - q <= high + 1e-12)
    assert seen > 0.999
    return held, held + 1 - seen


def simulated(draw, truth, interval):
    rng = np.random.default_rng(20)
    held = 0
    for seed in range(REPLICATIONS):
        low, high, _ = interval(draw(rng), seed)
        held += low <= truth <= high
    return held / REPLICATIONS


# ----------------------------------------------------------------------------------------- coverage


@each("accuracy", [0.1, 0.5, 0.7, 0.9, 0.95])
def test_the_interval_of_an_accuracy_holds_it_in_93_to_97_of_100_test_sets(accuracy):
    assert 0.93 <= coverage(accuracy) <= 0.97


@each("share", [0.5, 1.0], ids="split {}".format)
@each("disagreement", [0.02, 0.05, 0.1, 0.3], ids="{:.0%} disagree".format, few=2)
def test_the_interval_of_a_paired_difference_holds_it_in_93_to_97_of_100_test_sets(disagreement, share):
    """At any accuracy that allows it: the next test shows that the accuracies themselves do not enter."""
    lowest, highest = paired_coverage(disagreement * share, disagreement * (1 - share))
    assert lowest >= 0.93
    assert highest <= 0.97


@each(("only_a", "only_b"), [(3, 1), (70, 30)])
def test_pairs_that_agree_do_not_matter_to_the_paired_interval(only_a, only_b):
    a, b = pairs(only_a, only_b)
    both_wrong = slice(only_a + only_b, 900)
    a[both_wrong] = b[both_wrong] = 0
    assert paired_interval(a, b, seed=1) == paired(only_a, only_b)


@pytest.mark.slow
@each(
    ("accuracy", "worse", "better"),
    [
        (0.5, 0.15, 0.15),
        (0.5, 0.25, 0.05),
        (0.7, 0.05, 0.05),
        (0.7, 0.09, 0.01),
        (0.9, 0.04, 0.01),
        (0.9, 0.01, 0.01),
    ],
    few=2,
)
def test_simulated_networks_have_the_same_coverage(accuracy, worse, better):
    """Receiver right on ``accuracy`` of the samples, stitched wrong on ``worse`` of all where it is right."""

    def draw(rng):
        u = rng.random(N)
        stitched = ((u >= worse) & (u < accuracy)) | ((u >= accuracy) & (u < accuracy + better))
        return u < accuracy, stitched

    assert 0.93 <= simulated(draw, worse - better, lambda ab, s: paired_interval(*ab, seed=s)) <= 0.97
    assert 0.93 <= simulated(draw, accuracy, lambda ab, s: mean_interval(ab[0], seed=s)) <= 0.97


@each("accuracy", [0.0, 0.001, 0.01, 0.99, 0.999, 1.0])
def test_near_0_and_1_the_interval_keeps_its_width_and_its_coverage(accuracy):
    low, high, _ = mean_interval(outcomes(round(N * accuracy)), seed=0)
    assert 0 <= low <= accuracy <= high <= 1
    assert high - low > 1 / N
    assert coverage(accuracy) >= 0.93


def test_no_accuracy_has_a_coverage_below_93():
    assert min(coverage(p) for p in np.linspace(0.00005, 0.99995, 2001)) >= 0.935


@each(("only_a", "only_b"), [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (0, 2)])
def test_the_paired_interval_does_not_collapse_when_hardly_a_pair_disagrees(only_a, only_b):
    low, high, method = paired(only_a, only_b)
    assert low <= (only_a - only_b) / N <= high
    assert high - low > 1 / N
    assert method == "tango"


@each("share", [0.5, 0.8, 1.0])
@each("expected", [0.01, 0.2, 1, 2, 3])
def test_the_paired_interval_covers_when_hardly_a_pair_disagrees(expected, share):
    lowest, _ = paired_coverage(expected / N * share, expected / N * (1 - share))
    assert lowest >= 0.965


def test_the_lowest_coverage_of_few_disagreements_is_as_documented():
    """All one way, four expected: the case in which Tango's interval does worst."""
    lowest = min(paired_coverage(expected / N, 0)[0] for expected in np.arange(0.05, 60, 0.2))
    assert 0.928 <= lowest <= 0.931


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draw", "truth", "n"),
    [
        (lambda rng: rng.lognormal(size=N), np.exp(0.5), N),
        (lambda rng: rng.exponential(size=100), 1.0, 100),
    ],
    ids=["lognormal", "exponential, n = 100"],
)
def test_the_interval_of_a_skewed_loss_holds_it_in_93_to_97_of_100_test_sets(draw, truth, n):
    assert 0.93 <= simulated(draw, truth, lambda values, s: mean_interval(values, seed=s)) <= 0.97


@pytest.mark.slow
def test_the_interval_of_a_paired_loss_holds_it_and_is_shorter_than_unpaired():
    """Losses that share how hard a sample is, n = 100."""

    def draw(rng):
        hard = rng.exponential(size=100)
        return 1.2 * hard + 0.1 * rng.exponential(size=100), hard

    assert 0.93 <= simulated(draw, 0.3, lambda ab, s: paired_interval(*ab, seed=s)) <= 0.97
    a, b = draw(np.random.default_rng(0))
    low, high, _ = paired_interval(a, b, seed=0)
    assert high - low < 0.5 * np.subtract(*mean_interval(a, seed=0)[1::-1])


# ----------------------------------------------------------------------- against other computations


@each("n", [1, 2, 37, 1000])
def test_the_interval_of_an_accuracy_is_scipys(n):
    for ones in {0, 1, n // 3, n // 2, n - 1, n}:
        low, high, method = mean_interval(outcomes(ones, n), seed=0)
        few = min(ones, n - ones) < 10
        assert method == ("clopper-pearson" if few else "wilson")
        theirs = stats.binomtest(ones, n).proportion_ci(0.95, method="exact" if few else "wilson")
        assert (low, high) == pytest.approx(theirs, abs=1e-12)


def score_statistic(difference, only_a, only_b, n):
    """Tango's, with the likelihood maximised numerically under the difference instead of by its quadratic."""
    rest = n - only_a - only_b

    def loss(q):
        return -(xlogy(only_a, q + difference) + xlogy(only_b, q) + xlogy(rest, 1 - difference - 2 * q))

    q = minimize_scalar(
        loss, bounds=(max(0, -difference), (1 - difference) / 2), method="bounded", options={"xatol": 1e-13}
    ).x
    return (only_a - only_b - n * difference) / np.sqrt(n * (2 * q + difference * (1 - difference)))


@each(
    ("only_a", "only_b", "n"),
    [(3, 1, 50), (1, 3, 50), (5, 0, 200), (20, 15, 1000), (12, 9, 30), (1, 0, 1000)],
)
def test_tangos_interval_inverts_the_score_test_with_a_numerical_likelihood(only_a, only_b, n):
    z, estimate = stats.norm.ppf(0.975), (only_a - only_b) / n
    low = brentq(lambda d: score_statistic(d, only_a, only_b, n) - z, -0.9, estimate - 1e-4, xtol=1e-12)
    high = brentq(lambda d: score_statistic(d, only_a, only_b, n) + z, estimate + 1e-4, 0.9, xtol=1e-12)
    ours = paired_interval(*pairs(only_a, only_b, n), seed=0)
    assert ours == (pytest.approx(low, abs=1e-6), pytest.approx(high, abs=1e-6), "tango")


@each(("only_a", "only_b", "n", "published"), [(1, 7, 21, (-0.517, -0.026)), (6, 16, 161, (-0.1240, -0.0054))])
def test_tangos_interval_is_the_published_one(only_a, only_b, n, published):
    """Fagerland, Lydersen & Laake 2014, Statistics in Medicine 33:2850 (and R's contingencytables)."""
    assert paired_interval(*pairs(only_a, only_b, n), seed=0)[:2] == pytest.approx(published, abs=5e-4)


def test_one_pair_of_outcomes_and_complete_disagreement_stay_in_range():
    for a, b in [([1], [0]), ([0], [1]), ([1], [1]), ([1] * 30, [0] * 30)]:
        low, high, _ = paired_interval(a, b, seed=0)
        assert -1 <= low <= np.mean(np.subtract(a, b)) <= high <= 1
        assert high > low


@each(("only_a", "only_b"), [(40, 30), (90, 10), (10, 90), (150, 150), (800, 100)])
def test_the_paired_bootstrap_is_the_limit_of_resampling_pairs(only_a, only_b):
    """Against scipy's BCa, which resamples the differences; it is within the noise of 20,000 resamples."""
    a, b = pairs(only_a, only_b)
    theirs = stats.bootstrap(
        (a - b,), np.mean, n_resamples=20_000, batch=100, method="BCa", rng=np.random.default_rng(0)
    ).confidence_interval
    low, high, method = paired(only_a, only_b)
    assert (low, high) == pytest.approx(theirs, abs=1.5 / N)
    assert method == "bootstrap"


def test_the_bootstrap_of_a_loss_is_scipys_bca():
    values = np.random.default_rng(3).lognormal(size=400)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=20_000, batch=100, method="BCa", rng=4)
    error = float(theirs.standard_error)
    assert mean_interval(values, seed=0)[:2] == pytest.approx(theirs.confidence_interval, abs=0.2 * error)


def test_swapping_the_networks_turns_the_interval_around():
    for only_a, only_b in [(2, 0), (12, 5), (60, 20), (700, 100)]:
        low, high, _ = paired(only_a, only_b)
        assert paired(only_b, only_a)[:2] == pytest.approx((-high, -low), abs=1e-12)


# ------------------------------------------------------------------------------- edges and promises


def test_the_seed_decides_and_nothing_else():
    values = np.random.default_rng(0).exponential(size=(2, 200))
    assert mean_interval(values[0], seed=1) == mean_interval(values[0], seed=1)
    assert mean_interval(values[0], seed=1) != mean_interval(values[0], seed=2)
    assert paired_interval(*values, seed=1) == paired_interval(*values, seed=1)


@each("size", [2, 3, 10, 1000])
@each("scale", [1e-200, 1.0, 1e200])
def test_the_bootstrap_holds_the_mean_and_stays_within_the_values(size, scale):
    values = scale * np.random.default_rng(size).standard_cauchy(size)
    low, high, method = mean_interval(values, seed=0)
    assert values.min() <= low < values.mean() < high <= values.max()
    assert method == "bootstrap"


def test_values_that_do_not_vary_are_their_own_interval():
    loss = np.random.default_rng(0).exponential(size=50)
    assert paired_interval(loss, loss, seed=0) == (0, 0, "bootstrap")
    assert mean_interval([0.7] * 5, seed=0) == (pytest.approx(0.7), pytest.approx(0.7), "bootstrap")


def test_a_single_loss_has_no_interval():
    low, high, method = mean_interval([0.7], seed=0)
    assert np.isnan([low, high]).all()
    assert method == "none"


@each("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(bad):
    with pytest.raises(FitError, match="not finite for 1 of 3 samples"):
        mean_interval([0.5, bad, 1.0], seed=0)
    with pytest.raises(FitError, match="not finite for 1 of 2 samples"):
        paired_interval([0.5, 1.0], [bad, 1.0], seed=0)


def test_what_cannot_be_averaged_or_paired_is_refused():
    with pytest.raises(DataError, match="empty"):
        mean_interval([], seed=0)
    with pytest.raises(ValueError, match="one number per sample"):
        mean_interval([[0.5, 1.0]], seed=0)
    with pytest.raises(ValueError, match="3 values do not pair with 2"):
        paired_interval([1, 0, 1], [1, 0], seed=0)


@each(
    ("estimate", "text"),
    [
        (Estimate(0.912, 0.901, 0.922, "fraction", 9, "wilson"), "91.2 % [90.1, 92.2]"),
        (Estimate(1.3, 0.4, 2.1, "pp", 9, "tango"), "+1.3 pp [0.4, 2.1]"),
        (Estimate(-0.01, -0.4, 0.4, "pp", 9, "tango"), "+0.0 pp [-0.4, 0.4]"),
        (Estimate(0.412, 0.4, 0.4239, "nats", 9, "bootstrap"), "0.412 nats [0.400, 0.424]"),
        (Estimate(-3.0, -4.5, 1.0, "raw", 9, "bootstrap"), "-3.000 [-4.500, 1.000]"),
    ],
)
def test_an_estimate_reads_well_and_is_a_number(estimate, text):
    assert str(estimate) == text
    assert float(estimate) == estimate.value


# --- of a few units ---------------------------------------------------------------------------------------------------


@each("n", [2, 3, 5, 12])
def test_the_t_interval_is_scipys(n):
    values = np.random.default_rng(n).normal(size=n)
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert t_interval(values) == pytest.approx((expected.low, expected.high))
