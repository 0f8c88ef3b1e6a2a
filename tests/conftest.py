"""Settings that all tests share: one thread each, since they run side by side; the same examples from hypothesis every
time, and no deadline for them.
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # before torch is imported, and for processes of tests

from hypothesis import settings

settings.register_profile("suture", derandomize=True, deadline=None, max_examples=40, database=None)
settings.load_profile("suture")
