"""The experiments of oxford2025."""

from suture.studies.study import Study

STUDIES: tuple[Study, ...] = ()
