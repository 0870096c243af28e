"""What every test stands on: one thread, and property tests with the same examples on every run."""

import sys

import torch
from hypothesis import settings

# Runs are compared bit for bit with processes of one thread, and a sum is rounded by how many threads share it.
torch.set_num_threads(1)

# Hypothesis also draws numbers that it finds in the modules imported so far, and has no setting against it: which tests
# ran before in the same process would decide about a test's examples.
if providers := sys.modules.get("hypothesis.internal.conjecture.providers"):  # versions without it draw none
    providers._get_local_constants = lambda: providers._local_constants  # of no module

# No deadline: the machine may be busy.
settings.register_profile("snapref", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("snapref")
