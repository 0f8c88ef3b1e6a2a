"""The experiments of hernandez2022."""

from suture.studies.study import Study

STUDIES: tuple[Study, ...] = ()
