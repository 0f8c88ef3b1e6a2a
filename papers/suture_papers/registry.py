"""The studies by their ids."""

from suture import SutureError
from suture_papers import bansal2021, hernandez2022, oxford2025, smith2024
from suture_papers.base.study import Study

STUDIES: dict[str, Study] = {
    study.id: study for module in (bansal2021, hernandez2022, oxford2025, smith2024) for study in module.STUDIES
}
"""Every experiment of the four papers."""


def study_named(name: str) -> Study:
    """Return the study of an id. Raises ``SutureError`` with the nearest ids if there is none."""
    from difflib import get_close_matches

    if name in STUDIES:
        return STUDIES[name]
    same = [known for known in STUDIES if known.lower() == name.lower()]
    near = same or get_close_matches(name, STUDIES, 3)
    did_you_mean = f"did you mean {' or '.join(near)}? " if near else ""
    raise SutureError(f"no study '{name}'; {did_you_mean}suture studies lists them all")
