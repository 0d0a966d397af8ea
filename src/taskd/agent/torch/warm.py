"""Loads what a training process of torch needs, before there is anything to train.

A fresh worker spends seconds importing, and a good part of that hides until the first optimizer step, which
pulls in more than a thousand modules (dynamo among them). A process that has done all this can be forked
into a worker in milliseconds, provided that it has touched no device (a CUDA context does not survive a
fork), drawn no random number and started no thread.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed
import torch.nn.parallel


def warm() -> str:
    """Load the modules and return a few words on what is loaded."""
    # By its name: an agent does not know the training side, it only has it ready.
    importlib.import_module("taskd.train")
    before = torch.get_rng_state()
    with _no_devices():
        parameter = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.AdamW([parameter])
        parameter.grad = torch.zeros(1)  # Set, not computed: a backward pass starts autograd's threads.
        optimizer.step()
        optimizer.zero_grad()
    if torch.cuda.is_initialized() or not torch.equal(before, torch.get_rng_state()):
        msg = "warming up touched a device or the random generator; workers would not be as fresh ones"
        raise RuntimeError(msg)
    return f"torch {torch.__version__}, {len(sys.modules)} modules"


def renew() -> None:
    """Make a forked process draw its own numbers: a fresh torch seeds its CPU generator from the system.

    Generators of devices do not exist yet, and start from a fixed seed as they always do.
    """
    torch.default_generator.seed()


@contextmanager
def _no_devices() -> Iterator[None]:
    """Keep the optimizer from counting GPUs: it asks before each step, and the answer starts the driver."""
    asked = torch.cuda.is_available
    torch.cuda.is_available = lambda: False
    try:
        yield
    finally:
        torch.cuda.is_available = asked
