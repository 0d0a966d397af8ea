"""The nursery: real processes are started, watched, killed, and nothing is left behind."""

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from taskd.agent.nursery import Child, ChildExit, Nursery, NurseryLostError, WorkerLaunch
from taskd.agent.nursery_wire import differs_at_start
from taskd.core.exits import Exit
from taskd.core.programs import Program, ProgramKind

LIGHT = "gc:collect"  # Warm within milliseconds: for everything that is not about torch.
TORCH = "taskd.agent.torch.warm:warm"
LIMIT_S = 15.0


class Ward:
    """A nursery together with what it reported."""

    def __init__(self, directory: Path, *, warm: str = "", spares: int = 0) -> None:
        self.directory = directory
        self.exits: dict[str, ChildExit] = {}
        self.reports = 0
        self.lost = 0
        self.env = dict(os.environ)
        log = str(directory / "nursery.log")
        self.nursery = Nursery(env=self.env, on_exit=self._on_exit, warm=warm, spares=spares, log_file=log)
        self.nursery.on_lost = self._on_lost

    def _on_exit(self, ended: ChildExit) -> None:
        self.exits[ended.key] = ended
        self.reports += 1

    def _on_lost(self) -> None:
        self.lost += 1

    def launch(self, key: str, source: str, *args: str) -> WorkerLaunch:
        """Return the launch of a script with this source."""
        script = self.directory / f"{key}.py"
        script.write_text(textwrap.dedent(source))
        return self.run(key, Program(ProgramKind.SCRIPT, str(script), args))

    def run(self, key: str, program: Program, **env: str) -> WorkerLaunch:
        """Return the launch of a program, with its output and its error in files."""
        base = self.directory / key
        return WorkerLaunch(
            key, program, self.env | env, str(self.directory), f"{base}.out", f"{base}.err", f"{base}.json"
        )

    async def spawn(self, key: str, source: str, *args: str) -> Child:
        """Start a script."""
        return await self.nursery.spawn(self.launch(key, source, *args))

    async def ended(self, key: str) -> Exit:
        """Wait for the end of a worker."""
        await until(lambda: key in self.exits)
        return self.exits[key].exit

    def out(self, key: str) -> str:
        """Return what a worker printed."""
        path = self.directory / f"{key}.out"
        return path.read_text() if path.exists() else ""

    def err(self, key: str) -> str:
        """Return what a worker printed to stderr."""
        return (self.directory / f"{key}.err").read_text()


async def until(condition: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    """Poll until a condition holds."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.002)


@asynccontextmanager
async def ward(directory: Path, *, warm: str = "", spares: int = 0) -> AsyncIterator[Ward]:
    """Run a nursery for the time of a test."""
    made = Ward(directory, warm=warm, spares=spares)
    await made.nursery.start()
    try:
        if warm:
            assert await made.nursery.warm_ready(LIMIT_S)
        yield made
    finally:
        await made.nursery.close()


def gone(pid: int) -> bool:
    """Tell whether a process has ended, whoever may still have to reap it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def pids_in(text: str) -> list[int]:
    """Return the numbers that a worker printed."""
    return [int(word) for word in text.split()]


def fd_count(pid: int) -> int:
    """Count the open file descriptors of a process; of this one without what earlier tests have left."""
    gc.collect()
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


# A worker with a child in its group and one that left it; both would outlive it if nobody looked after them.
FAMILY = """
    import os, subprocess, sys, time
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    inside = subprocess.Popen(sleep)
    outside = subprocess.Popen(sleep, start_new_session=True)
    print(os.getpid(), inside.pid, outside.pid)
    time.sleep(600)
"""

ENDINGS = {
    "returns": ("pass", Exit(code=0)),
    "exit-none": ("import sys; sys.exit()", Exit(code=0)),
    "exit-int": ("import sys; sys.exit(7)", Exit(code=7)),
    "exit-text": ("import sys; sys.exit('enough')", Exit(code=1)),
    "hard-exit": ("import os; os._exit(9)", Exit(code=9)),
    "raises": ("raise RuntimeError('boom')", Exit(code=1)),
    "syntax": ("def (", Exit(code=1)),
    "killed": ("import os; os.kill(os.getpid(), 9)", Exit(signal=9)),
    "aborts": ("import os; os.abort()", Exit(signal=6)),
    "terminated": ("import os; os.kill(os.getpid(), 15)", Exit(signal=15)),
    "interrupted": ("import os, time; os.kill(os.getpid(), 2); time.sleep(9)", Exit(signal=2)),
}


@pytest.mark.parametrize(("warm", "spares"), [("", 0), (LIGHT, 0), (LIGHT, 2)])
async def test_every_way_to_end_is_reported_once_and_right(tmp_path: Path, warm: str, spares: int) -> None:
    """Codes and signals come out as the program's own, however its process was made."""
    async with ward(tmp_path, warm=warm, spares=spares) as w:
        await w.nursery.spawn_all([w.launch(key, source) for key, (source, _) in ENDINGS.items()])
        ends = {key: await w.ended(key) for key in ENDINGS}

        assert {key: how for key, (_, how) in ENDINGS.items()} == ends
        assert len(ENDINGS) == w.reports
        assert "enough\n" == w.err("exit-text")
        assert "KeyboardInterrupt" in w.err("interrupted")


async def test_commands_start_or_say_why_not(tmp_path: Path) -> None:
    """Any executable runs; one that is not found gives 127, one that cannot run 126, with a sentence."""
    (tmp_path / "plain.txt").write_text("no program")
    async with ward(tmp_path, warm=LIGHT, spares=1) as w:
        programs = {
            "found": Program(ProgramKind.COMMAND, "sh", ("-c", "echo $WORD; kill -TERM $$")),
            "missing": Program(ProgramKind.COMMAND, "no-such-program"),
            "plain": Program(ProgramKind.COMMAND, "./plain.txt"),
        }
        children = await w.nursery.spawn_all([w.run(k, p, WORD="hello") for k, p in programs.items()])

        assert ["exec", "exec", "exec"] == [child.source for child in children]
        assert Exit(signal=15) == await w.ended("found")
        assert "hello\n" == w.out("found")
        assert Exit(code=127) == await w.ended("missing")
        assert "no-such-program" in w.err("missing")
        assert Exit(code=126) == await w.ended("plain")


async def test_an_order_of_children_is_kept(tmp_path: Path) -> None:
    """spawn_all answers in the order of its launches, though spares are faster than fresh processes."""
    async with ward(tmp_path, warm=LIGHT, spares=1) as w:
        program = Program(ProgramKind.COMMAND, "true")
        launches = [w.run("a", program), w.launch("b", ""), w.run("c", program), w.launch("d", "")]
        children = await w.nursery.spawn_all(launches)

        assert ["a", "b", "c", "d"] == [child.key for child in children]
        assert ["exec", "spare", "exec", "fork"] == [child.source for child in children]


async def test_a_missing_directory_is_the_workers_failure(tmp_path: Path) -> None:
    """A launch that cannot be carried out ends as a process would, and says so where its output goes."""
    async with ward(tmp_path, warm=LIGHT, spares=1) as w:
        for key, kind in (("warm", ProgramKind.SCRIPT), ("cold", ProgramKind.COMMAND)):
            launch = w.run(key, Program(kind, "true"))
            await w.nursery.spawn(
                WorkerLaunch(key, launch.program, launch.env, "/no/such/place", "", launch.stderr, "")
            )

            assert Exit(code=126) == await w.ended(key)
            assert "/no/such/place" in w.err(key)


APPEARANCE = """
    import json, os, signal, sys, threading
    main = sys.modules["__main__"]
    handlers = {}
    for number in signal.valid_signals():
        handlers[int(number)] = repr(signal.getsignal(number)).split(" at ")[0]
    print(json.dumps({
        "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "cwd": os.getcwd(),
        "env": dict(os.environ), "raw_env": sorted(k.decode() for k in os.environb),
        "name": __name__, "file": __file__, "spec": __spec__, "main": vars(main) is globals(),
        "names": sorted(n for n in globals() if n.startswith("__")),
        "builtins": __builtins__.__name__, "loader": type(__loader__).__name__,
        "fds": {n: os.readlink(f"/proc/self/fd/{n}").rpartition(".")[2]
                for n in sorted(os.listdir("/proc/self/fd"))[:3]},
        "more_fds": len(os.listdir("/proc/self/fd")),
        "signals": handlers, "mask": [int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
        "streams": [[s.name, s.encoding, s.errors, s.write_through, s.line_buffering]
                    for s in (sys.stdin, sys.stdout, sys.stderr)],
        "leader": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
        "parent": os.getppid(), "threads": threading.active_count(),
    }))
"""


@pytest.fixture
def usual_signals() -> Iterator[None]:
    """Under nohup, or in a shell's background, a test and what it starts ignore some; a worker does not."""
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
    before = [signal.signal(number, signal.SIG_DFL) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("usual_signals")
async def test_nobody_sees_how_a_worker_was_made(tmp_path: Path) -> None:
    """Spare, fork, cold start and a plain ``python -u`` show a script the same process."""
    async with ward(tmp_path, warm=LIGHT, spares=1) as w:
        script = tmp_path / "look.py"
        script.write_text(textwrap.dedent(APPEARANCE))
        program = Program(ProgramKind.SCRIPT, "./look.py", ("--x", "1"))
        seen, sources = {}, {}
        for key in ("spare", "fork", "exec"):
            other = {"WHO": "one", **({"PYTHONDEVMODE": ""} if key == "exec" else {})}
            child = await w.nursery.spawn(w.run(key, program, **other))
            sources[key] = child.source
            assert Exit(code=0) == await w.ended(key), w.err(key)
            seen[key] = json.loads(w.out(key))
            for where in (seen[key]["env"], seen[key]["raw_env"]):
                if "PYTHONDEVMODE" in where:
                    where.remove("PYTHONDEVMODE") if isinstance(where, list) else where.pop("PYTHONDEVMODE")
        with (tmp_path / "plain.out").open("w") as out, (tmp_path / "plain.err").open("w") as err:
            subprocess.run(  # noqa: ASYNC221 - nothing else happens meanwhile.
                [sys.executable, "-u", "./look.py", "--x", "1"], check=True, cwd=tmp_path,
                env=w.env | {"WHO": "one"}, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                start_new_session=True,
            )  # fmt: skip
        plain = json.loads(w.out("plain")) | {"parent": w.nursery.pid}

        assert {"spare": "spare", "fork": "fork", "exec": "exec"} == sources
        assert plain == seen["exec"]
        assert plain == seen["fork"]
        assert plain == seen["spare"]


async def test_a_module_runs_as_with_dash_m(tmp_path: Path) -> None:
    """A package's module has its spec, its package and the working directory first on the path."""
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "tool.py").write_text(
        "import sys\nprint(__name__, __package__, __spec__.name, sys.argv[1:], sys.path[0])\n"
    )
    async with ward(tmp_path, warm=LIGHT, spares=1) as w:
        for key, kind in (("spare", "spare"), ("exec", "exec")):
            extra = {"PYTHONX": "1"} if kind == "exec" else {}
            program = Program(ProgramKind.MODULE, "pack.tool", ("-v",))
            child = await w.nursery.spawn(w.run(key, program, **extra))

            assert kind == child.source
            assert Exit(code=0) == await w.ended(key)
            assert f"__main__ pack pack.tool ['-v'] {tmp_path}\n" == w.out(key)


async def test_forks_draw_different_random_numbers(tmp_path: Path) -> None:
    """Two workers from one warm process do not share Python's or numpy's random state."""
    (tmp_path / "loads.py").write_text("import random\nimport numpy.random\ndef go(): return ''\n")
    os.environ["PYTHONPATH"] = str(tmp_path)
    try:
        async with ward(tmp_path, warm="loads:go", spares=2) as w:
            source = "import sys, random, numpy; print(random.random(), numpy.random.rand())"
            children = await w.nursery.spawn_all([w.launch("a", source), w.launch("b", source)])
            await w.ended("a")
            await w.ended("b")

            assert ["spare", "spare"] == [child.source for child in children]
            assert 4 == len({*w.out("a").split(), *w.out("b").split()})
    finally:
        del os.environ["PYTHONPATH"]


async def test_variables_read_at_start_forbid_a_prepared_process() -> None:
    """Only a fresh process can obey LD_PRELOAD, OMP_NUM_THREADS or PYTHONHASHSEED."""
    base = {"OMP_NUM_THREADS": "1", "RANK": "0", "TORCHELASTIC_RUN_ID": "a"}

    assert "" == differs_at_start(base, base | {"RANK": "1", "TORCHELASTIC_RUN_ID": "b"})
    assert "OMP_NUM_THREADS" == differs_at_start(base, base | {"OMP_NUM_THREADS": "2"})
    assert "LD_PRELOAD" == differs_at_start(base, base | {"LD_PRELOAD": "x.so"})
    assert "OMP_NUM_THREADS" == differs_at_start(base, {"RANK": "0"})


async def test_threads_in_the_warm_process_forbid_forking(tmp_path: Path) -> None:
    """A warm-up that leaves a thread is not forked: each spare does the warm-up itself."""
    (tmp_path / "threaded.py").write_text(
        "import threading, time\n"
        "def go():\n    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    os.environ["PYTHONPATH"] = str(tmp_path)
    try:
        async with ward(tmp_path, warm="threaded:go", spares=1) as w:
            source = "import sys, threading; print('threaded' in sys.modules, threading.active_count())"
            child = await w.spawn("a", source)

            assert "spare" == child.source
            assert Exit(code=0) == await w.ended("a")
            assert "True 2\n" == w.out("a")
    finally:
        del os.environ["PYTHONPATH"]


async def test_a_warm_up_that_fails_or_lasts_costs_only_warmth(tmp_path: Path) -> None:
    """While the imports run, and when they fail for good, workers start cold and at once."""
    (tmp_path / "slow.py").write_text("import time\ndef go(): time.sleep(600)\n")
    os.environ["PYTHONPATH"] = str(tmp_path)
    try:
        for warm in ("slow:go", "no_such_module:go"):
            made = Ward(tmp_path, warm=warm, spares=1)
            await made.nursery.start()
            try:
                child = await made.spawn("a", "print('here')")

                assert "exec" == child.source
                assert Exit(code=0) == await made.ended("a")
            finally:
                await made.nursery.close()
    finally:
        del os.environ["PYTHONPATH"]


async def test_a_signal_reaches_the_whole_group_and_the_end_takes_the_rest(tmp_path: Path) -> None:
    """Signals go to a worker's group; when the worker ends, nothing of its group goes on."""
    async with ward(tmp_path) as w:
        child = await w.spawn("a", FAMILY)
        await until(lambda: len(w.out("a").split()) == 3)
        _, inside, outside = pids_in(w.out("a"))
        os.kill(child.pid, signal.SIGKILL)

        assert Exit(signal=9) == await w.ended("a")
        await until(lambda: gone(inside))
        assert not gone(outside)  # It left the group by itself: it may stay until the nursery closes.

        w.nursery.signal(child.pid, signal.SIGTERM)  # Gone already: no error.
    assert gone(outside)


@pytest.mark.parametrize(("warm", "spares"), [("", 0), (LIGHT, 1)])
async def test_a_stop_is_known_when_it_happens(tmp_path: Path, warm: str, spares: int) -> None:
    """And forgotten when the worker goes on; nobody has to look."""
    async with ward(tmp_path, warm=warm, spares=spares) as w:
        child = await w.spawn("a", "import time; time.sleep(600)")
        assert w.nursery.stopped_at(child.pid) is None
        before = time.monotonic()
        os.kill(child.pid, signal.SIGSTOP)
        await until(lambda: w.nursery.stopped_at(child.pid) is not None)
        assert before < (w.nursery.stopped_at(child.pid) or 0.0) < time.monotonic()

        os.kill(child.pid, signal.SIGCONT)
        await until(lambda: w.nursery.stopped_at(child.pid) is None)
        os.kill(child.pid, signal.SIGSTOP)
        await until(lambda: w.nursery.stopped_at(child.pid) is not None)
        os.kill(child.pid, signal.SIGKILL)

        assert Exit(signal=9) == await w.ended("a")
        assert w.nursery.stopped_at(child.pid) is None


async def test_close_leaves_nothing_and_reports_everyone(tmp_path: Path) -> None:
    """Closing kills workers with all their descendants, and each is reported before close returns."""
    made = Ward(tmp_path, warm=LIGHT, spares=2)
    before = fd_count(os.getpid())
    await made.nursery.start()
    assert await made.nursery.warm_ready(LIMIT_S)
    nursery, zygote = made.nursery.pid, made.nursery.zygote_pid
    await made.spawn("a", FAMILY)
    await made.spawn("b", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)")
    await until(lambda: len(made.out("a").split()) == 3)
    await made.nursery.close()

    assert {"a": Exit(signal=9), "b": Exit(signal=9)} == {k: e.exit for k, e in made.exits.items()}
    assert all(gone(pid) for pid in (nursery, zygote, *pids_in(made.out("a"))))
    assert 0 == made.lost
    assert fd_count(os.getpid()) <= before
    with pytest.raises(NurseryLostError):
        await made.spawn("c", "")


AGENT = """
import asyncio, os, sys
from taskd.agent.nursery import Nursery, WorkerLaunch
from taskd.core.programs import Program, ProgramKind

async def main():
    where, script = sys.argv[1:]
    nursery = Nursery(env=os.environ, on_exit=print, warm="gc:collect", spares=2)
    await nursery.start()
    assert await nursery.warm_ready(15)
    program = Program(ProgramKind.SCRIPT, script)
    launches = [WorkerLaunch(str(i), program, dict(os.environ), where, f"{where}/{i}.out", "", "")
                for i in range(3)]
    sources = [child.source for child in await nursery.spawn_all(launches)]
    print(nursery.pid, nursery.zygote_pid, *sources, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_a_killed_agent_leaves_no_process(tmp_path: Path) -> None:
    """A kill -9 of the agent ends nursery, warm process, spares, workers and all their descendants."""
    script, agent_script = tmp_path / "family.py", tmp_path / "agent.py"
    script.write_text(textwrap.dedent(FAMILY))
    agent_script.write_text(AGENT)
    command = [sys.executable, str(agent_script), str(tmp_path), str(script)]
    said = tmp_path / "agent.out"
    with said.open("w") as out, subprocess.Popen(command, stdout=out) as agent:
        await until(lambda: said.read_text().endswith("\n"))
        words = said.read_text().split()
        outputs = [tmp_path / f"{number}.out" for number in range(3)]
        await until(lambda: all(out.exists() and len(out.read_text().split()) == 3 for out in outputs))
        pids = [int(words[0]), int(words[1]), *(pid for out in outputs for pid in pids_in(out.read_text()))]
        agent.kill()

    await until(lambda: all(gone(pid) for pid in pids), limit_s=5.0)
    assert ["spare", "spare", "fork"] == words[2:]


async def test_a_killed_nursery_takes_its_workers_and_is_noticed(tmp_path: Path) -> None:
    """A kill -9 of the nursery ends every worker; each is reported with signal 9, then the loss itself."""
    before = fd_count(os.getpid())
    async with ward(tmp_path, warm=LIGHT, spares=1) as w:
        for key in ("spare", "fork"):
            await w.spawn(key, FAMILY)
        await w.nursery.spawn(w.run("exec", Program(ProgramKind.COMMAND, "sleep", ("600",))))
        await until(lambda: all(len(w.out(key).split()) == 3 for key in ("spare", "fork")))
        groups = [pid for key in ("spare", "fork") for pid in pids_in(w.out(key))[:2]]
        strays = [pids_in(w.out(key))[2] for key in ("spare", "fork")]
        zygote = w.nursery.zygote_pid
        os.kill(w.nursery.pid, signal.SIGKILL)
        await until(lambda: w.lost == 1)

        assert {Exit(signal=9)} == {ended.exit for ended in w.exits.values()}
        assert 3 == w.reports == len(w.exits)
        assert not w.nursery.alive
        await until(lambda: all(gone(pid) for pid in (*groups, zygote)))
        for pid in strays:  # Nobody is left who knows them: a session of its own needs the nursery alive.
            os.kill(pid, signal.SIGKILL)
    assert 1 == w.lost
    assert fd_count(os.getpid()) <= before


async def test_a_killed_warm_process_costs_only_warmth(tmp_path: Path) -> None:
    """Workers and parked spares outlive the warm process; a new one is started and serves again."""
    async with ward(tmp_path, warm=LIGHT, spares=1) as w:
        first = await w.spawn("a", "import sys; sys.stdin.read(); import time; time.sleep(600)")
        second = await w.spawn("b", "import time; time.sleep(600)")
        assert await w.nursery.warm_ready(LIMIT_S)
        zygote = w.nursery.zygote_pid
        os.kill(zygote, signal.SIGKILL)
        await until(lambda: w.nursery.zygote_pid not in {zygote, 0})
        third = await w.spawn("c", "import time; time.sleep(600)")
        assert await w.nursery.warm_ready(LIMIT_S)

        assert ["spare", "fork"] == [first.source, second.source]
        assert third.source in {"spare", "exec"}
        assert not any(gone(child.pid) for child in (first, second, third))
        assert "spare" == (await w.spawn("d", "raise SystemExit(5)")).source
        assert Exit(code=5) == await w.ended("d")
        for child in (first, second, third):
            w.nursery.signal(child.pid, signal.SIGTERM)
        assert {Exit(signal=15)} == {await w.ended("a"), await w.ended("b"), await w.ended("c")}


async def test_many_cycles_leave_no_descriptor_and_no_zombie(tmp_path: Path) -> None:
    """Agent, nursery and warm process hold as many descriptors after twenty workers as before."""
    async with ward(tmp_path, warm=LIGHT, spares=1) as w:
        everyone = (os.getpid(), w.nursery.pid, w.nursery.zygote_pid)
        before = [fd_count(pid) for pid in everyone]
        for number in range(20):
            key = f"w{number}"
            program = Program(ProgramKind.COMMAND, "true")
            await w.nursery.spawn(w.run(key, program) if number % 3 == 0 else w.launch(key, ""))

            assert Exit(code=0) == await w.ended(key)
        assert await w.nursery.warm_ready(LIMIT_S)
        await until(lambda: before == [fd_count(pid) for pid in everyone])

        nursery = str(w.nursery.pid)
        command = ["ps", "-o", "state=", "--ppid", nursery]
        states = subprocess.run(command, check=False, capture_output=True, text=True).stdout  # noqa: ASYNC221
        assert 2 == len(states.split()), "the warm process and one spare"
        assert "Z" not in states


async def test_death_is_noticed_before_it_is_explained(tmp_path: Path) -> None:
    """A worker's pidfd tells the agent of its death while the nursery is unable to say anything."""
    async with ward(tmp_path) as w:
        child = await w.spawn("a", "import time; time.sleep(600)")
        os.kill(w.nursery.pid, signal.SIGSTOP)
        try:
            killed_at = time.monotonic()
            w.nursery.signal(child.pid, signal.SIGKILL)
            ended = await w.ended("a")
        finally:
            os.kill(w.nursery.pid, signal.SIGCONT)

        assert Exit() == ended  # Nobody told how within the bound.
        assert w.exits["a"].noticed_at - killed_at < 0.5


async def test_an_exit_is_never_reported_before_its_spawn_returned(tmp_path: Path) -> None:
    """A caller knows a child's number before it hears of its end, short as its life may be."""
    async with ward(tmp_path) as w:
        for number in range(10):
            key = f"w{number}"
            await w.nursery.spawn(w.run(key, Program(ProgramKind.COMMAND, "true")))

            assert key not in w.exits
            await w.ended(key)


@pytest.mark.parametrize("where", ["spare", "exec"])
async def test_children_of_a_script_find_its_main_module(tmp_path: Path, where: str) -> None:
    """Both start methods of multiprocessing work: the child imports the script again by its file."""
    source = """
        import multiprocessing, sys
        def double(x): return 2 * x
        if __name__ == "__main__":
            for method in ("fork", "spawn"):
                with multiprocessing.get_context(method).Pool(1) as pool:
                    print(pool.map(double, [1, 2]))
    """
    async with ward(tmp_path, warm=LIGHT if where == "spare" else "", spares=1) as w:
        child = await w.spawn("a", source)

        assert Exit(code=0) == await w.ended("a"), w.err("a")
        assert "[2, 4]\n[2, 4]\n" == w.out("a")
        assert where == child.source


async def test_a_warm_torch_worker_is_as_good_as_a_fresh_one(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """PyTorch is loaded at the first line; devices are untouched, seeds its own, data loaders work."""
    source = """
        import sys, time
        first_line, loaded = time.monotonic(), "torch" in sys.modules
        import torch
        from torch.utils.data import DataLoader
        class Data:
            def __len__(self): return 8
            def __getitem__(self, i): return torch.tensor(float(i))
        total = sum(batch.sum().item() for batch in DataLoader(Data(), batch_size=2, num_workers=2))
        torch.nn.Linear(2, 2)(torch.ones(2)).sum().backward()
        print(first_line, loaded, total, torch.cuda._is_in_bad_fork(), torch.rand(1).item())
    """
    async with ward(tmp_path, warm=TORCH, spares=1) as w:
        drawn = set()
        asked_at = time.monotonic()
        children = await w.nursery.spawn_all([w.launch(key, source) for key in ("spare", "fork")])
        for key, child in zip(("spare", "fork"), children, strict=True):
            assert Exit(code=0) == await w.ended(key), w.err(key)
            first_line, loaded, total, bad_fork, number = w.out(key).split()
            drawn.add(number)
            record_property(f"first_line_{key}_ms", round(1e3 * (float(first_line) - asked_at), 1))

            assert (key, "True", "28.0", "False") == (child.source, loaded, total, bad_fork)
            assert "" == w.err(key)
        assert 2 == len(drawn)
