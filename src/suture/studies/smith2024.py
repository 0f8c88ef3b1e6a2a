"""The experiments of smith2024."""

from suture.studies.study import Study

STUDIES: tuple[Study, ...] = ()
