"""Controls: the same trial with one thing changed, so that the result should collapse or stay.

A control is a function ``Trial → Trial``; runners and fits never hear of it.

==================  =====================================================  =====================================
control             what is changed                                        what it shows
==================  =====================================================  =====================================
itself              the sender is the receiver, cut at the same place      what the stitch adds: should stay
untrained sender    the sender has never seen data                         what suffix and stitch do alone
untrained receiver  the receiver has never seen data                       how much the stitch can learn
untrained both      neither has                                            the floor of the method
shuffled pairs      the stitch is fitted to the labels and activations of  whether it leaks: collapses to chance
                    other images
==================  =====================================================  =====================================

An untrained receiver is also the baseline of its penalty, which is therefore negative where the stitch learns the task
by itself: compare the stitched score. And least squares alone does not collapse on maps and tokens of shuffled pairs:
images have in common what they show at each position on average, and at an early cut that alone tells much about how
channels correspond. Fits that end on the task loss do collapse, and so do vectors, which have no positions.

bansal2021, section 2 (untrained sender); hernandez2022 (untrained sender, receiver, both); smith2024, appendix C.5
(itself).
"""

from collections.abc import Callable
from dataclasses import replace

from suture.network import Network
from suture.seeds import derive_seed
from suture.trial import Trial

Control = Callable[[Trial], Trial]


def itself(trial: Trial) -> Trial:
    """Stitch the receiver to itself, at the receiver's cut."""
    shape = trial.shapes[1]
    keep = trial.stitch is not None and trial.stitch.accepts(shape, shape)
    return replace(
        trial,
        sender=trial.receiver,
        sender_cut=trial.receiver_cut,
        stitch=trial.stitch if keep else None,
        control="itself",
    )


def untrained_sender(trial: Trial) -> Trial:
    """Put a freshly initialised network in the sender's place."""
    return replace(trial, sender=_untrained(trial.sender, trial, "sender"), control="untrained sender")


def untrained_receiver(trial: Trial) -> Trial:
    """Put a freshly initialised network in the receiver's place."""
    return replace(trial, receiver=_untrained(trial.receiver, trial, "receiver"), control="untrained receiver")


def untrained_both(trial: Trial) -> Trial:
    """Put freshly initialised networks in both places, from different seeds."""
    return replace(untrained_sender(untrained_receiver(trial)), control="untrained both")


def shuffled_pairs(trial: Trial) -> Trial:
    """Fit the stitch to the labels and the receiver's activations of other images; score on the true pairs."""
    return replace(
        trial,
        fit_data=trial.fit_data.shuffled(trial.seed),
        validation_data=trial.validation_data.shuffled(trial.seed),
        control="shuffled pairs",
    )


DEFAULT: tuple[Control, ...] = (itself, untrained_sender, untrained_receiver, untrained_both, shuffled_pairs)


def with_controls(trial: Trial, controls: tuple[Control, ...]) -> tuple[Trial, ...]:
    """Give the trial, followed by each of its controls."""
    return (trial, *(control(trial) for control in controls))


def _untrained(network: Network, trial: Trial, role: str) -> Network:
    """One untrained network for each network, role and seed, whatever the cut, so that its prefix runs once."""
    return network.untrained(derive_seed("untrained", network.fingerprint, role, trial.seed))
