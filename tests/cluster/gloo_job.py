"""Plain data-parallel training of two pods, without any of TaskD: gloo over the pod network."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(3)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(dist.get_rank())
losses = []
for _ in range(40):
    x = torch.randn(32, 8, generator=generator)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
total = float(sum(parameter.sum().item() for parameter in model.parameters()))
print(f"trained {losses[-1] < losses[0] / 100} {total.hex()}")
dist.destroy_process_group()
