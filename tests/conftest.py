"""Settings that all tests share: hypothesis draws the same examples every time, and no deadline hurries them."""

from hypothesis import settings

settings.register_profile("suture", derandomize=True, deadline=None, max_examples=40, database=None)
settings.load_profile("suture")
