"""``taskd run`` understands what torchrun understands, and says what it does not."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from taskd.cli.errors import FlagError
from taskd.cli.flags import parse_run
from taskd.cli.flagtable import FLAGS, HelpRequested, format_help
from taskd.cli.machine import DeviceKind, Machine
from taskd.core.launch import FaultKind, LaunchSpec
from taskd.core.programs import Program, ProgramKind

SCRIPT = "train.py"
FILES = {SCRIPT: "", "faults": '{"step": 2, "rank": 0, "kind": "kill"}\n'}


def make_machine(
    env: Mapping[str, str] | None = None, gpus: int = 0, npus: int = 0, files: Mapping[str, str] | None = None
) -> Machine:
    """Build a machine with four processors and a few files."""
    known = FILES | dict(files or {})
    devices = {DeviceKind.GPU: gpus, DeviceKind.NPU: npus}

    def read_text(path: str) -> str:
        if path not in known:
            raise FileNotFoundError(2, "No such file or directory")
        return known[path]

    return Machine(
        env=env or {},
        exists=known.__contains__,
        which=lambda name: f"/bin/{name}" if name == "server" else None,
        read_text=read_text,
        count_devices=devices.__getitem__,
        count_cpus=lambda: 4,
        new_id=lambda: "0123456789ab-cdef",
    )


def parse(*argv: str, machine: Machine | None = None, script: str = SCRIPT) -> LaunchSpec:
    """Parse flags in front of a script."""
    return parse_run([*argv, script], machine or make_machine()).spec


def complaint(*argv: str, machine: Machine | None = None) -> str:
    """Parse something wrong and return the sentence."""
    with pytest.raises(FlagError) as caught:
        parse(*argv, machine=machine)
    assert "\n" not in caught.value.sentence
    return caught.value.sentence


# --- the program -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "script", "kind"),
    [
        ([], SCRIPT, ProgramKind.SCRIPT),
        (["-m"], "pkg.train", ProgramKind.MODULE),
        (["--module"], "pkg.train", ProgramKind.MODULE),
        (["--no-python"], "server", ProgramKind.COMMAND),
        (["--no_python"], "server", ProgramKind.COMMAND),
        (["--run-path", "--no-python"], SCRIPT, ProgramKind.SCRIPT),
    ],
)
def test_the_program_is_what_the_flags_say(flags: list[str], script: str, kind: ProgramKind) -> None:
    """A script must exist; a module need not, and a command is looked for in PATH."""
    assert Program(kind, script) == parse(*flags, script=script).program


@pytest.mark.parametrize(
    "args", [["--max", "10"], ["--no", "1"], ["--nnodes", "9"], ["--", "-h"], ["--job=x", "--bogus"]]
)
def test_everything_after_the_script_belongs_to_the_script(args: list[str]) -> None:
    """Not even words that look like flags of ours are touched."""
    spec = parse_run(["--nproc-per-node", "2", SCRIPT, *args], make_machine()).spec

    assert tuple(args) == spec.program.args
    assert (1, 2) == (spec.max_nodes, spec.local_world)


def test_two_dashes_end_the_flags() -> None:
    """A script may then have any name."""
    spec = parse_run(["--spares", "1", "--", "-odd.py", "-x"], make_machine(files={"-odd.py": ""})).spec

    assert Program(ProgramKind.SCRIPT, "-odd.py", ("-x",)) == spec.program


# --- against torchrun ------------------------------------------------------------------------------------

VECTORS: list[list[str]] = [
    [],
    ["--standalone"],
    ["--standalone", "--nproc-per-node", "3"],
    ["--nproc_per_node=2"],
    ["--nproc-per-node", "cpu"],
    ["--nnodes", "1:1"],
    ["--nnodes=2", "--node-rank=1", "--master-addr", "10.0.0.1", "--master-port", "1234"],
    ["--nnodes=2", "--node_rank=1", "--master_addr", "10.0.0.1", "--master_port", "1234"],
    ["--nnodes=2", "--node-rank=0", "--master-addr=host-0"],
    ["--nnodes=2", "--node-rank=1", "--master-addr=[::1]"],
    ["--nnodes=2", "--node-rank=1", "--rdzv-endpoint", "10.0.0.1:77"],
    ["--master-port", "1234"],
    ["--rdzv-backend", "c10d", "--rdzv-endpoint", "host:1", "--rdzv-id", "job7", "--nnodes", "1:4"],
    ["--rdzv_backend", "c10d", "--rdzv_endpoint", "host", "--rdzv_id", "job7", "--nnodes", "2"],
    ["--rdzv-backend=c10d", "--rdzv-endpoint=[::1]:9", "--nnodes=2"],
    ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=one", "--nnodes=1"],
    ["--rdzv-backend=c10d", "--nnodes=2"],
    ["--max-restarts", "0", "--monitor-interval", "0.5", "--role", "trainer"],
    ["--max_restarts=3", "--monitor_interval=2"],
    ["-r", "3", "-t", "0:1,1:2", "--log-dir", "out"],
    ["-r3", "--tee=1", "--log_dir", "out", "--local-ranks-filter", "1,0"],
    ["--redirects", "0:3", "--local_ranks_filter=0"],
    ["--shutdown-timeout", "7", "--start-method", "fork"],
]
ENVIRONMENTS: list[dict[str, str]] = [
    {},
    {"PET_NNODES": "3", "PET_NODE_RANK": "2", "PET_MASTER_ADDR": "h", "PET_MASTER_PORT": "5"},
    {"PET_NPROC_PER_NODE": "6", "PET_MAX_RESTARTS": "9", "PET_ROLE": "r", "PET_TEE": "2"},
    {"PET_STANDALONE": "1", "PET_MONITOR_INTERVAL": "3"},
    {"PET_STANDALONE": "0", "PET_RDZV_CONF": "timeout=33"},
    {"PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "e:4", "PET_RDZV_ID": "x", "PET_NNODES": "2:3"},
]


@pytest.fixture(scope="module")
def torch_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Import torchrun, which is the slow part of this file.

    It makes a directory for logs at every call, even where nothing is started.
    """
    from torch.distributed import run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("torchrun")))
        yield run


@pytest.mark.parametrize("env", ENVIRONMENTS, ids=lambda env: ",".join(env) or "no variables")
@pytest.mark.parametrize("argv", VECTORS, ids=" ".join)
def test_agrees_with_torchrun(
    argv: list[str], env: dict[str, str], torch_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same words and variables mean the same to both, as far as torchrun's own values tell."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    seen: list[Any] = []

    def elastic_launch(config: Any, **_: Any) -> Any:
        seen.append(config)
        return lambda *_: None

    monkeypatch.setattr(torch_run, "elastic_launch", elastic_launch)
    monkeypatch.setattr("torch._utils.cpu_count", lambda: 4)
    torch_run.run(torch_run.parse_args([*argv, SCRIPT]))
    [theirs] = seen
    alone = theirs.rdzv_backend == "c10d" and theirs.rdzv_endpoint == "localhost:0"
    no_such_node = theirs.rdzv_backend == "static" and theirs.rdzv_configs["rank"] >= theirs.max_nodes
    if no_such_node or (alone and theirs.min_nodes > 1):
        # torchrun takes it and then fails, or waits for nodes that cannot know its port: refused here.
        assert complaint(*argv, machine=make_machine(env))
        return

    ours = parse(*argv, machine=make_machine(env))

    assert theirs.nproc_per_node == ours.local_world
    assert theirs.role == ours.role
    assert theirs.logs_specs._local_ranks_filter in (None, set(ours.logs.show_local_ranks))
    assert _streams(theirs.logs_specs._redirects) == ours.logs.redirects
    assert _streams(theirs.logs_specs._tee) == ours.logs.tee
    if "--max-restarts" in argv or "PET_MAX_RESTARTS" in env:
        assert theirs.max_restarts == ours.max_restarts
    if "--monitor-interval" in argv or "PET_MONITOR_INTERVAL" in env:
        assert theirs.monitor_interval == ours.monitor_interval_s
    if theirs.shutdown_timeout is not None:
        assert theirs.shutdown_timeout == ours.stop_grace_s
    if alone:
        assert (1, 1, 0, 0) == (ours.min_nodes, ours.max_nodes, ours.node_rank, ours.master_port)
        assert "127.0.0.1" == ours.master_addr
        return
    assert (theirs.min_nodes, theirs.max_nodes) == (ours.min_nodes, ours.max_nodes)
    assert theirs.run_id == ours.run_id
    assert theirs.rdzv_backend == ours.rdzv_backend
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

    where = parse_rendezvous_endpoint(theirs.rdzv_endpoint, 29400)
    if theirs.rdzv_backend == "static":
        assert (*where, theirs.rdzv_configs["rank"]) == (ours.master_addr, ours.master_port, ours.node_rank)
    else:
        assert where == parse_rendezvous_endpoint(ours.rdzv_endpoint, 0)
        assert -1 == ours.node_rank


def test_every_flag_of_torchrun_is_known(torch_run: Any) -> None:
    """A new version of torch with a new flag fails here, not at a user's."""
    theirs = {
        option.replace("_", "-").removeprefix("--")
        for action in torch_run.get_args_parser()._actions
        for option in action.option_strings
        if option.startswith("--")
    }
    # Completion scripts are torchrun's own; shells are not TaskD's business.
    assert set() == theirs - {flag.name for flag in FLAGS} - {"help", "print-completion"}


def _streams(value: Any) -> dict[int, int]:
    if isinstance(value, dict):
        return {rank: int(streams.value) for rank, streams in value.items()}
    return {-1: int(value.value)} if value.value else {}


# --- spelling --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", [flag for flag in FLAGS if "-" in flag.name], ids=lambda flag: flag.name)
@pytest.mark.parametrize("joined", [True, False])
def test_underscores_are_as_good_as_dashes(flag: Any, joined: bool) -> None:
    """Both spellings of each flag give the same job or the same refusal, with = or with a blank."""
    value = {"NAMES": "retry", "ENDPOINT": "h:1", "CONF": "timeout=1", "RANKS": "0", "ADDR": "h"}.get(
        flag.metavar, "1"
    )
    value = "c10d" if flag.name == "rdzv-backend" else "spawn" if flag.name == "start-method" else value

    def result(name: str) -> object:
        words = [f"--{name}"]
        if flag.metavar:
            words = [f"--{name}={value}"] if joined else [f"--{name}", value]
        try:
            return parse_run(["--nnodes=2", *words, SCRIPT], make_machine())
        except FlagError as error:
            return error.sentence.replace("_", "-")

    assert result(flag.name) == result(flag.name.replace("-", "_"))


@pytest.mark.parametrize("word", ["--nproc", "--nproc-per", "--nproc_per"])
def test_a_flag_may_be_cut_short(word: str) -> None:
    """As long as only one flag begins like that, whatever its spellings."""
    assert 2 == parse(word, "2").local_world


@pytest.mark.parametrize("words", [["-h"], ["--help"], ["--he"], ["--nnodes", "2", "-h"]])
def test_help_is_asked_for_before_the_script(words: list[str]) -> None:
    """And names every flag."""
    with pytest.raises(HelpRequested):
        parse_run(words, make_machine())
    assert all(f"--{flag.name}" in format_help() for flag in FLAGS)


# --- our values ------------------------------------------------------------------------------------------


def test_defaults_are_taskds_own() -> None:
    """32767 restarts and 5 seconds, as documented; the manager's port is chosen later; the user's 0 is 0."""
    spec = parse()

    assert (32767, 5.0, 30.0, 0) == (
        spec.max_restarts,
        spec.monitor_interval_s,
        spec.stop_grace_s,
        spec.manager_port,
    )
    assert 0 == parse("--max-restarts", "0").max_restarts


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({"TASKD_RECOVER_STRATEGY": "recover, dump"}, ("recover", "dump")),
        ({"TASKD_RECOVER_STRATEGY": ""}, ()),
        ({"PROCESS_RECOVER": "on", "HIGH_AVAILABILITY": "dump,recover"}, ("dump", "recover", "exit")),
        (
            {"PROCESS_RECOVER": "on", "HIGH_AVAILABILITY": "recover", "ENABLE_RESTART_FAULT_PROCESS": "on"},
            ("recover-in-place", "recover", "exit"),
        ),
        ({"HIGH_AVAILABILITY": "recover"}, ()),
    ],
)
def test_a_pod_s_environment_says_which_recovery_is_allowed(
    env: dict[str, str], wanted: tuple[str, ...]
) -> None:
    """The list that the operator injects, else the reference operator's switches; a flag wins over both."""
    assert wanted == parse(machine=make_machine(env=env)).recover_strategies
    assert ("retry",) == parse(
        "--recover-strategy", "retry", machine=make_machine(env=env)
    ).recover_strategies


def test_all_six_strategies_are_taken_together() -> None:
    """Also ``elastic-training``, which is skipped when its turn comes."""
    six = ("retry", "recover-in-place", "recover", "elastic-training", "dump", "exit")

    assert six == parse("--recover-strategy", ",".join(six)).recover_strategies


def test_a_wrong_strategy_in_the_environment_names_the_variable() -> None:
    with pytest.raises(FlagError, match=r"TASKD_RECOVER_STRATEGY=pray in the environment.*not pray"):
        parse(machine=make_machine(env={"TASKD_RECOVER_STRATEGY": "pray"}))


def test_own_flags_arrive() -> None:
    """Each of TaskD's flags has its field."""
    spec = parse(
        *("--spares", "2", "--local-nodes", "3", "--nproc-per-node", "2", "--faults", "faults"),
        *(
            "--keep-trying",
            "--job",
            "my.job",
            "--manager-port",
            "0",
            "--recover-strategy",
            "retry, dump,retry",
        ),
    )

    assert (2, 3, 3, 3, 2) == (
        spec.spares,
        spec.local_nodes,
        spec.min_nodes,
        spec.max_nodes,
        spec.local_world,
    )
    assert (True, "my.job", 0) == (spec.keep_trying, spec.job, spec.manager_port)
    assert ("retry", "dump") == spec.recover_strategies
    assert [(FaultKind.KILL, 0, 2)] == [(fault.kind, fault.rank, fault.step) for fault in spec.faults]


def test_rendezvous_settings_arrive() -> None:
    """The older name of a limit gives way to the newer one; what has no effect is said."""
    conf = "timeout=1,join_timeout=20,last_call_timeout=3,is_host=true,read_timeout=5"
    request = parse_run(["--rdzv-conf", conf, SCRIPT], make_machine())

    assert (20.0, 3.0, True) == (
        request.spec.join_timeout_s,
        request.spec.last_call_s,
        request.spec.rdzv_is_host,
    )
    assert any("read_timeout" in note for note in request.notes)


def test_a_flag_without_effect_is_said() -> None:
    """Silence would look like obedience."""
    request = parse_run(["--start-method", "fork", "--numa-binding", "node", SCRIPT], make_machine())

    assert ["--start-method has no effect with TaskD", "--numa-binding has no effect with TaskD"] == list(
        request.notes
    )


@pytest.mark.parametrize(
    ("value", "gpus", "npus", "env", "expected"),
    [
        ("auto", 0, 0, {}, 4),
        ("auto", 8, 0, {}, 8),
        ("auto", 0, 16, {}, 16),
        ("cpu", 8, 0, {}, 4),
        ("gpu", 8, 0, {}, 8),
        ("npu", 0, 8, {}, 8),
        ("gpu", 8, 0, {"CUDA_VISIBLE_DEVICES": "1,3"}, 2),
        ("gpu", 8, 0, {"CUDA_VISIBLE_DEVICES": "1,-1,3"}, 1),
        ("gpu", 2, 0, {"CUDA_VISIBLE_DEVICES": "0,1,2"}, 2),
        ("gpu", 8, 0, {"CUDA_VISIBLE_DEVICES": "GPU-aa,GPU-bb"}, 2),
        ("auto", 8, 0, {"CUDA_VISIBLE_DEVICES": ""}, 4),
        ("npu", 0, 8, {"ASCEND_RT_VISIBLE_DEVICES": "4,5"}, 2),
        ("7", 0, 0, {}, 7),
    ],
)
def test_processes_are_counted_from_devices(
    value: str, gpus: int, npus: int, env: dict[str, str], expected: int
) -> None:
    """Those that the job may see, and processors where there are none."""
    assert expected == parse("--nproc-per-node", value, machine=make_machine(env, gpus, npus)).local_world


@pytest.mark.parametrize(
    ("words", "env", "expected"),
    [
        ([], {}, "train-01234567"),
        (["--nnodes=2", "--master-port=77"], {}, "train-77"),
        (["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:5"], {}, "train-5"),
        (["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=exp-7"], {}, "exp-7"),
        (["--nnodes=2", "--rdzv-backend=c10d"], {"PET_RDZV_ID": "a/b"}, "train-ab"),
        (["--job", "mine"], {}, "mine"),
    ],
)
def test_nodes_of_one_job_come_to_the_same_name(words: list[str], env: dict[str, str], expected: str) -> None:
    """Without asking each other: by what their users gave all of them."""
    assert expected == parse(*words, machine=make_machine(env)).job


# --- complaints ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--bogus"], ["--bogus is not a flag"]),
        (["--stanalone"], ["did you mean --standalone?"]),
        (["-x"], ["-x is not a flag"]),
        (["--no"], ["--node-rank or --no-python"]),
        (["--nnodes", "abc"], ["--nnodes abc", "MIN:MAX"]),
        (["--nnodes", "0"], ["--nnodes 0"]),
        (["--nnodes", "3:2"], ["--nnodes 3:2"]),
        (["--nnodes", "1:"], ["--nnodes 1:"]),
        (["--nnodes", "1:2:3"], ["--nnodes 1:2:3"]),
        (["--nproc_per_node", "some"], ["--nproc_per_node some", "auto"]),
        (["--nproc-per-node", "0"], ["--nproc-per-node 0"]),
        (["--nproc-per-node", "gpu"], ["shows no gpu"]),
        (["--max-restarts", "-1"], ["--max-restarts -1", "from 0"]),
        (["--max-restarts", "1.5"], ["--max-restarts 1.5"]),
        (["--monitor-interval", "0"], ["--monitor-interval 0", "above 0"]),
        (["--monitor-interval", "nan"], ["--monitor-interval nan"]),
        (["--master-port", "70000"], ["65535"]),
        (["--nnodes=2", "--node-rank", "2"], ["--node-rank 2", "0 to 1"]),
        (["--nnodes=2", "--rdzv-endpoint", "host"], ["needs the port"]),
        (["--rdzv-backend", "etcd-v2"], ["etcd", "c10d"]),
        (["--rdzv-backend", "magic"], ["static and c10d"]),
        (["--rdzv-backend=c10d", "--nnodes=2", "--rdzv-endpoint=h:0"], ["cannot be 0"]),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=h:x"], ["the port is a number"]),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=h h"], ["the host is a name"]),
        (["--rdzv-conf", "timeout"], ["KEY=VALUE"]),
        (["--rdzv-conf", "timeout=soon"], ["timeout is a number"]),
        (["--rdzv-conf", "is_host=perhaps"], ["is_host"]),
        (["--standalone", "--nnodes", "2"], ["--standalone", "--nnodes"]),
        (["--standalone=1"], ["takes no value"]),
        (["--local-nodes", "2", "--nnodes", "2"], ["--local-nodes", "--nnodes"]),
        (["--local-nodes", "2", "--rdzv-endpoint", "h:1"], ["--local-nodes", "--rdzv-endpoint"]),
        (["--local-nodes", "0"], ["--local-nodes 0"]),
        (["--spares", "-1"], ["--spares -1"]),
        (["--redirects", "4"], ["--redirects 4"]),
        (["-t", "0:1,"], ["-t 0:1,"]),
        (["--local-ranks-filter", "a"], ["--local-ranks-filter a"]),
        (["--recover-strategy", "retry,pray"], ["not pray"]),
        (["--recover-strategy", ","], ["one of retry"]),
        (["--job", "../up"], ["--job ../up"]),
        (["--start-method", "magic"], ["--start-method magic"]),
        (["--virtual-local-rank"], ["LOCAL_RANK"]),
        (["--module", "--no-python"], ["exclude each other"]),
        (["--no-python"], ["command train.py is not in PATH"]),
        (["--faults", "nowhere"], ["nowhere", "No such file"]),
        (["--nnodes", "--standalone"], ["--nnodes needs a value"]),
    ],
)
def test_a_mistake_is_one_sentence_about_the_flag(words: list[str], parts: list[str]) -> None:
    """It names what the user wrote and what would be right."""
    sentence = complaint(*words)

    assert all(part in sentence for part in parts), sentence


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PET_NNODES", "abc"),
        ("PET_NPROC_PER_NODE", "x"),
        ("PET_MAX_RESTARTS", ""),
        ("PET_MONITOR_INTERVAL", "-1"),
        ("PET_STANDALONE", "yes"),
        ("PET_MASTER_PORT", "http"),
        ("PET_TEE", "9"),
        ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "soon"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, value: str) -> None:
    """Nobody looks for a flag that was never typed."""
    sentence = complaint(machine=make_machine({variable: value}))

    assert f"{variable}={value} in the environment" in sentence


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('\n{"step": 1}\n', 'line 2: "kind" is missing'),
        (
            '{"step": 1, "rank": 9, "kind": "kill"}',
            "line 1: rank 9 does not exist; the job's ranks are 0 to 1",
        ),
        ('{"step": 1, "node": 1, "kind": "kill"}', "line 1: node 1 does not exist"),
    ],
)
def test_a_wrong_schedule_is_named_by_file_and_line(text: str, part: str) -> None:
    """Also where a fault could never strike, because nobody has that number."""
    sentence = complaint("--nproc-per-node=2", "--faults=plan", machine=make_machine(files={"plan": text}))

    assert f"faults file plan, {part}" in sentence


def test_a_script_must_exist_and_be_there() -> None:
    """A typing error is found before any process starts."""
    with pytest.raises(FlagError, match=r"script missing\.py does not exist"):
        parse_run(["missing.py"], make_machine())
    with pytest.raises(FlagError, match="no script to run"):
        parse_run(["--nnodes", "1"], make_machine())


def test_this_machine_answers() -> None:
    """The real answers have the right shape on any machine."""
    from taskd.cli.machine import this_machine

    machine = this_machine()

    assert machine.count_cpus() == len(os.sched_getaffinity(0))
    assert all(machine.count_devices(kind) >= 0 for kind in DeviceKind)
    assert machine.exists(__file__)
    assert machine.new_id() != machine.new_id()


# --- limits of a hang, and the reference's variables -------------------------------------------------------


def test_limits_of_a_hang() -> None:
    """By flags, or by variables."""
    spec = parse("--hang-floor", "5", "--hang-ceiling", "60")
    assert (5.0, 60.0) == (spec.hang_floor_s, spec.hang_ceiling_s)
    spec = parse(machine=make_machine({"TASKD_HANG_FLOOR": "7"}))
    assert 7.0 == spec.hang_floor_s


def test_a_wrong_limit_of_a_hang_is_named() -> None:
    """The flag or the variable, and the rule."""
    assert "--hang-floor 0: it must be a number of seconds above 0" == complaint("--hang-floor", "0")
    assert "--hang-ceiling 3: it must not be below the floor" in complaint(
        "--hang-floor", "5", "--hang-ceiling", "3"
    )
    assert "TASKD_HANG_FLOOR=soon" in complaint(machine=make_machine({"TASKD_HANG_FLOOR": "soon"}))


def test_s3_12_a_wrong_operator_retry_ends_the_launch() -> None:
    """HCCL would read it differently, and only when a link breaks."""
    wrong = make_machine({"HCCL_OP_RETRY_ENABLE": "on"})
    assert "HCCL_OP_RETRY_ENABLE=on in the environment" in complaint(machine=wrong)


def test_s3_13_memory_errors_join_the_schedule() -> None:
    """The variable and a file of faults go together; a rank that does not exist is refused."""
    machine = make_machine({"RAISE_UCE_ERROR_STEP_AND_RANK": "{3:1}"})
    spec = parse("--nproc-per-node", "2", "--faults", "faults", machine=machine)
    assert [FaultKind.KILL, FaultKind.UCE] == [fault.kind for fault in spec.faults]
    assert "rank 1 does not exist" in complaint(machine=machine)
