"""ZeRO-1 with two copies: an optimizer whose state is spread over the data parallel ranks, and survives one.

Each rank updates only its share of the parameters, so moments are kept once instead of everywhere, and the
updated shares are gathered by all. torch's own ``ZeroRedundancyOptimizer`` keeps every share once: with a
rank its share is gone. Here the ranks form two (or more) halves that share the parameters out in the same
way, so the same share is computed twice, from the same gradient, at no cost in communication.

An update that talks to others could leave some ranks with it and others without. So it is made in two parts:
``prepare`` computes the own share on the side and gathers all shares, the vote follows, and only then are the
parameters touched. What was interrupted before the vote leaves no trace.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from taskd.train.torch.loading import load_state

COPIES = 2


class ShardedOptimizer(torch.optim.Optimizer):
    """An optimizer over a rank's share; register it with ``job.register`` like any other."""

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter],
        optimizer_class: type[torch.optim.Optimizer],
        *,
        copies: int = COPIES,
        group: dist.ProcessGroup | None = None,
        **settings: Any,  # noqa: ANN401 - the inner optimizer's own
    ) -> None:
        """Share parameters out among the ranks of a group (all, by default) that have the same gradients."""
        parameters = list(params)
        if not parameters or not all(isinstance(each, torch.Tensor) for each in parameters):
            raise ValueError("give one list of parameters; parameter groups cannot be shared out")
        kinds = {(each.dtype, each.device) for each in parameters}
        if len(kinds) > 1:
            # They are gathered as one tensor, which would give all of them the type of the first.
            raise ValueError(
                f"give parameters of one type on one device; these are of {sorted(map(str, kinds))}"
            )
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        if copies < 1 or size % copies:
            raise ValueError(f"{size} ranks cannot be parted into {copies} halves that keep the same shares")
        self._shares = size // copies
        self._share = rank % self._shares
        self._group = group
        self._all = share_out(parameters, self._shares)
        mine = self._all[self._share] or [torch.nn.Parameter(torch.zeros(1))]  # more ranks than parameters
        # The inner one works on copies of the parameters: the real ones change only after the vote.
        self._drafts = [torch.nn.Parameter(parameter.detach().clone()) for parameter in mine]
        self._mine = mine
        self.inner = optimizer_class(self._drafts, **settings)
        self._gathered: list[torch.Tensor] = []
        self._undo: dict[str, Any] | None = None
        super().__init__(parameters, dict(self.inner.defaults))

    @property
    def taskd_shard(self) -> str:
        """Name the share: ranks with the same one can replace each other."""
        return f"{self._share}/{self._shares}"

    def prepare(self) -> None:
        """Compute the own share's update on the side and gather all shares; nothing changes yet."""
        self._undo = None
        self._take_settings()
        before = self.inner.state_dict()
        self._undo = {"state": _copied(before["state"]), "param_groups": before["param_groups"]}
        with torch.no_grad():
            for draft, parameter in zip(self._drafts, self._mine, strict=True):
                draft.copy_(parameter)
                draft.grad = parameter.grad
        self.inner.step()
        drafts = self._drafts if self._all[self._share] else []
        self._gathered = self._gather([draft.detach().reshape(-1) for draft in drafts])

    def discard(self) -> None:
        """Forget what was prepared: the step is computed again."""
        if self._undo is not None:
            load_state(self.inner, self._undo)
        self._undo = None
        self._gathered = []

    def step(self, closure: Callable[[], float] | None = None) -> Any:  # noqa: ANN401 - as torch has it
        """Update all parameters from the gathered shares."""
        if closure is not None:
            raise ValueError("a closure would be called on one share only; compute the loss before the step")
        if not self._gathered:
            self.prepare()  # not registered, or no recovery
        with torch.no_grad():
            for share, flat in zip(self._all, self._gathered, strict=True):
                at = 0
                for parameter in share:
                    parameter.copy_(flat[at : at + parameter.numel()].view_as(parameter))
                    at += parameter.numel()
        self._undo = None
        self._gathered = []

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank's share."""
        return {"share": self.taskd_shard, "inner": self.inner.state_dict(), "settings": self._settings()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state of this very share."""
        if state_dict["share"] != self.taskd_shard:
            raise ValueError(f"this is share {self.taskd_shard}, and a state of {state_dict['share']} came")
        load_state(self.inner, state_dict["inner"])
        for group, settings in zip(self.param_groups, state_dict["settings"], strict=True):
            group.update(settings)

    def _settings(self) -> list[dict[str, Any]]:
        return [{key: group[key] for key in group if key != "params"} for group in self.param_groups]

    def _take_settings(self) -> None:
        """Pass on what a scheduler has changed."""
        for group in self.inner.param_groups:
            group.update(self._settings()[0])

    def _gather(self, drafts: list[torch.Tensor]) -> list[torch.Tensor]:
        lengths = [sum(parameter.numel() for parameter in share) for share in self._all]
        padded = torch.zeros(max(lengths), dtype=self._drafts[0].dtype, device=self._drafts[0].device)
        at = 0
        for draft in drafts:
            padded[at : at + draft.numel()] = draft
            at += draft.numel()
        rows = [torch.empty_like(padded) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(rows, padded, group=self._group)
        # Both copies are there; they are equal to the bit, so the first half is as good as any.
        return [row[:length] for row, length in zip(rows, lengths, strict=False)]


def _copied(state: dict[Any, dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    return {
        key: {
            name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in each.items()
        }
        for key, each in state.items()
    }


def share_out(parameters: list[torch.nn.Parameter], shares: int) -> list[list[torch.nn.Parameter]]:
    """Give each parameter to the share that has least so far, the largest first; the same on all ranks."""
    buckets: list[list[torch.nn.Parameter]] = [[] for _ in range(shares)]
    loads = [0] * shares
    order = sorted(range(len(parameters)), key=lambda index: (-parameters[index].numel(), index))
    for index in order:
        least = min(range(shares), key=lambda share: (loads[share], share))
        buckets[least].append(parameters[index])
        loads[least] += parameters[index].numel()
    return buckets
