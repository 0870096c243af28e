"""One profile for property tests: the same examples on every run, no deadline on a busy machine."""

from hypothesis import settings

settings.register_profile("snapref", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("snapref")
