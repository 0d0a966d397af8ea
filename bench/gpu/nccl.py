"""NCCL at world size 1: make a backend, abort it from another thread, and make it again. One line of JSON."""

import json
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from taskd.train.torch import devices

dist: Any = torch.distributed
device = devices.find("nccl")
torch.cuda.set_device(0)
torch.zeros(1, device="cuda").item()
times: dict[str, list[float]] = {"make_ms": [], "first_ms": [], "interrupt_ms": [], "close_ms": []}
for _ in range(4):
    begun = time.perf_counter()
    store = dist.HashStore()
    backend = device.make_backend(store, 0, 1, timedelta(seconds=60))
    times["make_ms"].append(1000 * (time.perf_counter() - begun))
    begun = time.perf_counter()
    tensor = torch.full((1 << 20,), 3.0, device="cuda")
    backend.allreduce([tensor], dist.AllreduceOptions()).wait()
    torch.cuda.synchronize()
    assert float(tensor[0]) == 3.0
    times["first_ms"].append(1000 * (time.perf_counter() - begun))
    begun = time.perf_counter()
    watch = threading.Thread(target=device.interrupt, args=(backend,))
    watch.start()
    watch.join(60)
    assert not watch.is_alive()
    times["interrupt_ms"].append(1000 * (time.perf_counter() - begun))
    begun = time.perf_counter()
    device.close(backend)
    del backend
    times["close_ms"].append(1000 * (time.perf_counter() - begun))
    # The device is as usable as before.
    assert float(torch.ones(8, device="cuda").sum()) == 8.0
print(json.dumps({"rounds": 4, **{name: [round(v, 1) for v in values] for name, values in times.items()}}))
