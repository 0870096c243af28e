"""What every test stands on: the CPU, one thread, and property tests with the same examples on every run."""

import os
import sys

import torch
from hypothesis import settings

# What is compared to the bit runs on the CPU, and a card is for tests/gpu, asked for by name.
if "PYTEST_XDIST_WORKER" not in os.environ and not any("gpu" in word for word in sys.argv[1:]):
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
# Servers of the tests are on this machine; a proxy is not asked about them.
for variable in ("no_proxy", "NO_PROXY"):
    os.environ[variable] = ",".join(filter(None, (os.environ.get(variable), "127.0.0.1", "localhost")))

# Runs are compared bit for bit with processes of one thread, and a sum is rounded by how many threads share it.
torch.set_num_threads(1)

# Hypothesis also draws numbers that it finds in the modules imported so far, and has no setting against it: which tests
# ran before in the same process would decide about a test's examples.
if providers := sys.modules.get("hypothesis.internal.conjecture.providers"):  # versions without it draw none
    providers._get_local_constants = lambda: providers._local_constants  # of no module

# No deadline: the machine may be busy.
settings.register_profile("snapref", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("snapref")
