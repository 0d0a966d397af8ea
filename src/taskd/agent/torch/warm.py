"""Loads what a training process of torch needs, before there is anything to train.

A fresh worker spends seconds importing, and a good part of that hides until the first optimizer step, which
pulls in more than a thousand modules (dynamo among them). A process that has done all this can be forked
into a worker in milliseconds, provided that it has touched no device (a CUDA context does not survive a
fork), drawn no random number and started no thread.

After the fork a process that waits for its rank has time, and may touch a device: its context, the libraries
and the kernels of a step take a second or more, most of which a replaced rank would otherwise spend while all
others wait. This is done where the job sees exactly one CUDA device. Where it sees several, a spare does not
know yet which will be its own, and a context on each would take gigabytes: then only the driver is started.
``TASKD_SPARE_DEVICE=0`` keeps spares away from devices (each takes about half a gigabyte of one), and so does
an empty ``CUDA_VISIBLE_DEVICES``. A prepared process looks to the script as if it had used the device before:
nothing is drawn from the device's generator, nothing stays allocated, but forked children cannot use CUDA.
"""

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed
import torch.nn.parallel

# By their names: an agent does not know the training side, it only has it ready. What `join` would load.
TRAINING = tuple(f"taskd.train.{name}" for name in ("session", "torch.engine", "torch.hooks", "torch.plain"))


def warm() -> str:
    """Load the modules and return a few words on what is loaded."""
    for name in TRAINING:
        importlib.import_module(name)
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


def prepare() -> Iterator[str]:
    """Prepare a forked process for a device, step by step; yields a few words after each.

    Every step leaves the process usable: a launch may end the preparation after any of them.
    """
    if os.environ.get("TASKD_SPARE_DEVICE") == "0" or os.environ.get("CUDA_VISIBLE_DEVICES") in {"", "-1"}:
        return
    if not torch.cuda.is_available():
        return
    torch.cuda.init()
    yield "CUDA"
    if torch.cuda.device_count() != 1:
        return
    state = torch.cuda.get_rng_state()
    torch.zeros(1, device="cuda").add_(1).item()
    yield "a context"
    for dtype in (torch.float32, torch.bfloat16):
        _train_a_little(dtype)
        yield str(dtype).removeprefix("torch.")
    # A library that drew numbers behind our back must not make this rank another one.
    torch.cuda.set_rng_state(state)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    yield "cuda:0"


def _train_a_little(dtype: torch.dtype) -> None:
    """Run a step on the device. Kernels are loaded when they are first used, and so are the libraries."""
    with torch.random.fork_rng(devices=[0]):  # weights are drawn from the host's generator
        width = 64
        layers = torch.nn.Sequential(
            torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.LayerNorm(width), torch.nn.ReLU()
        ).to("cuda", dtype)
    optimizer = torch.optim.AdamW(layers.parameters())
    heads = layers(torch.ones(8, 16, width, device="cuda", dtype=dtype)).view(8, 16, 4, 16).transpose(1, 2)
    mixed = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    target = torch.zeros(8 * 16, device="cuda", dtype=torch.int64)
    rows = mixed.transpose(1, 2).reshape(8 * 16, width)
    torch.nn.functional.cross_entropy(rows.float(), target).backward()
    torch.nn.utils.clip_grad_norm_(layers.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


@contextmanager
def _no_devices() -> Iterator[None]:
    """Keep the optimizer from counting GPUs: it asks before each step, and the answer starts the driver."""
    asked = torch.cuda.is_available
    torch.cuda.is_available = lambda: False
    try:
        yield
    finally:
        torch.cuda.is_available = asked
