"""This process among those of one command, however they were launched."""

import torch
from accelerate import PartialState


def process_state() -> PartialState:
    """Accelerate's state. Without a GPU it has to be told to look for other processes: it would think itself alone."""
    return PartialState(cpu=not torch.cuda.is_available())
