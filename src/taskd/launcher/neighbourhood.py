"""The pods of a job, asked by the names that stay theirs while their addresses change.

The leader's address leads to whoever has rank 0 now, and its Service only to the ports that the job declares.
So a pod that comes back asks its neighbours' launchers directly. The one that would host the manager asks all
of them: were it to miss one, a second job would begin. So does one that stands by. All others ask a few.
"""

import asyncio
import socket
from collections.abc import Mapping

from taskd.core.podplace import PodPlace
from taskd.core.succession import Candidate, Roster
from taskd.kit.papers import NO_PAPERS, JobPapers
from taskd.launcher.lookout import Word, ask_anyone

A_FEW = 8
AT_ONCE = 64


class Neighbourhood:
    """Whom a pod can ask, and where the leader is said to be."""

    def __init__(
        self,
        place: PodPlace,
        job: str,
        token: str,
        port: int,
        leader: str,
        *,
        all_of_them: bool,
        papers: JobPapers = NO_PAPERS,
    ) -> None:
        """Take the names of all pods but this one."""
        own = place.name.partition(".")[0]
        names = [name for name in place.peers if name.partition(".")[0] != own]
        # Those after oneself, so that not everybody asks the same few; and rank 0, where the manager begins.
        here = next((n for n, name in enumerate(place.peers) if name.partition(".")[0] == own), 0)
        turned = names[here:] + names[:here]
        few = list(dict.fromkeys([*names[:1], *turned]))[:A_FEW]
        self._names = names if all_of_them else few
        self._job, self._token, self._port, self._papers = job, token, port, papers
        self.leader = leader

    async def ask(self, me: Candidate) -> dict[str, Word]:
        """Ask them where the manager is, and say where this launcher is; returns what was said, by node."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def ask_one(name: str) -> object:
            async with gate:
                return await ask_anyone(f"{name}:{self._port}", self._job, self._token, me, self._papers)

        words = await asyncio.gather(*map(ask_one, self._names))
        return {
            word.node: word for word in words if isinstance(word, Word) and word.node not in ("", me.node)
        }

    @staticmethod
    def latest_roster(words: Mapping[str, Word]) -> Roster | None:
        """Return the latest roster that anybody has."""
        rosters = [word.roster for word in words.values() if word.roster is not None]
        return max(rosters, key=lambda each: (each.term, each.version), default=None)

    async def describe_wait(self, manager: str) -> str:
        """Say why there is no manager yet, as far as that can be told from here."""
        host = (manager or self.leader).rpartition(":")[0].strip("[]")
        try:
            await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError as error:
            return f"the name {host} of rank 0's pod cannot be resolved yet ({error.strerror}); still trying"
        where = manager or self.leader
        return (
            f"no manager answers at {where} yet; still trying. Its pod may not run yet; if it does, see that "
            f"its container declares the port {where.rpartition(':')[2]} (name taskd-port)"
        )
