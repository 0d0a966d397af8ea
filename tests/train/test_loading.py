import torch

from taskd.train.torch.exchange import digest
from taskd.train.torch.loading import load_state


def test_an_optimizer_keeps_the_types_of_its_tensors() -> None:
    """Also of those with more bits than their parameter has, which torch would cut off."""
    parameters = [torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16)) for _ in range(2)]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    optimizer.state[parameters[1]] = {"master": torch.rand(3), "count": 3, "step": torch.tensor(4.0)}
    other = torch.optim.SGD([torch.nn.Parameter(each.detach().clone()) for each in parameters], lr=0.3)

    load_state(other, optimizer.state_dict())

    assert digest({"it": optimizer}) == digest({"it": other})
