"""The commands other than ``run``: which there are, and how they are spelled.

Declared with typer here; what they do is imported when one is called, so that ``taskd --help`` stays quick. A
declared command only returns its work, which is done outside of typer: typer has its own answers to an
interrupt and to a reader that leaves, and they are not ours.
"""

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer

from taskd.cli.errors import CliError
from taskd.core.exits import ExitCode

# The ancestor of all complaints about a command line. Newer versions of typer bring their own copy of click,
# so the class is taken from typer and not from click.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="taskd",
    help="Keeps training jobs running.",
    add_completion=False,
    rich_markup_mode=None,  # rich would double the time of every --help
    pretty_exceptions_enable=False,
)

Work = Callable[[], int]
JobArgument = Annotated[
    str | None, typer.Argument(metavar="[JOB]", help="Name of the job; not needed where there is only one.")
]


class StatusOutput(StrEnum):
    """Forms of a status."""

    TABLE = "table"
    JSON = "json"
    PLAIN = "plain"


class TimelineOutput(StrEnum):
    """Forms of a timeline."""

    TABLE = "table"
    JSON = "json"


@app.command(add_help_option=False)
def run() -> None:
    """Start a job: taskd run [torchrun's flags] script.py [arguments]."""


@app.command()
def status(
    job: JobArgument = None,
    output: Annotated[StatusOutput, typer.Option(help="Form of the output.")] = StatusOutput.TABLE,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until the job ends.")] = False,
) -> Work:
    """Show a job's ranks and nodes, their state and step, and the last fault."""
    from taskd.cli import commands

    return partial(commands.show_status, job, output.value, watch=watch)


@app.command()
def timeline(
    job: JobArgument = None,
    output: Annotated[TimelineOutput, typer.Option(help="Form of the output.")] = TimelineOutput.TABLE,
    perfetto: Annotated[str | None, typer.Option(metavar="FILE", help="Write a trace for Perfetto.")] = None,
) -> Work:
    """Show each fault with its phases in milliseconds and the reason in words."""
    from taskd.cli import commands

    return partial(commands.show_timeline, job, output.value, perfetto)


@app.command()
def logs(
    rank: Annotated[int, typer.Option(help="The rank whose output to print.")],
    job: JobArgument = None,
    stderr: Annotated[bool, typer.Option("--stderr", help="Its stderr instead of its stdout.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    attempt: Annotated[int | None, typer.Option(metavar="K", help="An earlier start, from 0.")] = None,
) -> Work:
    """Print what a rank wrote."""
    from taskd.cli import commands

    return partial(commands.show_logs, job, rank, attempt, stderr=stderr, follow=follow)


@app.command()
def stop(job: JobArgument = None) -> Work:
    """End a job in order and wait until it is gone."""
    from taskd.cli import commands

    return partial(commands.stop, job)


@app.command()
def inject(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="kill, hang, raise, exit, uce or network.")],
    job: JobArgument = None,
    *,
    rank: Annotated[int | None, typer.Option(metavar="N", help="Break this rank.")] = None,
    node: Annotated[int | None, typer.Option(metavar="N", help="Break this node as a whole.")] = None,
    role: Annotated[str | None, typer.Option(metavar="ROLE", help="Break a manager, proxy or agent.")] = None,
    at_step: Annotated[int | None, typer.Option(metavar="S", help="At this step; otherwise now.")] = None,
    code: Annotated[int | None, typer.Option(metavar="C", help="Code for exit (default 1).")] = None,
) -> Work:
    """Break something in a running job, to see it recover."""
    from taskd.cli import commands

    return partial(commands.inject, kind, job, rank=rank, node=node, role=role, step=at_step, code=code)


@app.command()
def switch(
    job: JobArgument = None,
    *,
    rank: Annotated[int | None, typer.Option(metavar="N", help="Give this rank a new process.")] = None,
    node: Annotated[int | None, typer.Option(metavar="N", help="Move this node's ranks to a spare.")] = None,
) -> Work:
    """Move ranks while they train: to a new process, or to a spare node."""
    from taskd.cli import commands

    return partial(commands.switch, job, rank=rank, node=node)


@app.command()
def controller(
    config: Annotated[str, typer.Option(metavar="FILE", help="Settings as YAML; flags win over it.")] = "",
    *,
    kubeconfig: Annotated[str | None, typer.Option(metavar="FILE", help="How to reach the cluster.")] = None,
    namespace: Annotated[str | None, typer.Option(help="Only the jobs of this namespace.")] = None,
    gang: Annotated[str | None, typer.Option(help="PodGroups: auto (default), on or off.")] = None,
    discovery_s: Annotated[float | None, typer.Option(help="How often to look for PodGroups (30).")] = None,
    workers: Annotated[int | None, typer.Option(help="Jobs looked at side by side (32).")] = None,
    connections: Annotated[int | None, typer.Option(help="Connections for requests (16).")] = None,
    leader_elect: Annotated[bool | None, typer.Option(help="Act only while holding the Lease.")] = None,
    lease_namespace: Annotated[str | None, typer.Option(help="Where the Lease is (taskd-system).")] = None,
    lease_name: Annotated[str | None, typer.Option(help="What it is called (taskd-controller).")] = None,
    lease_s: Annotated[float | None, typer.Option(help="How long it holds without renewal (15).")] = None,
    identity: Annotated[str | None, typer.Option(help="This replica's name in the Lease.")] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Health and metrics.")] = None,
    rank_table_dir: Annotated[str | None, typer.Option(metavar="DIR", help="For rank-table files.")] = None,
    certificates: Annotated[str | None, typer.Option(metavar="SECRET", help="TLS keys for pods.")] = None,
    plane_service: Annotated[str | None, typer.Option(metavar="NS/NAME", help="The control plane.")] = None,
    plane: Annotated[bool | None, typer.Option(help="Serve the control plane, too.")] = None,
    plane_listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Its gRPC port.")] = None,
    plane_certificates: Annotated[str | None, typer.Option(metavar="DIR", help="Its TLS keys.")] = None,
    plane_insecure: Annotated[bool | None, typer.Option(help="Serve it without TLS.")] = None,
    plane_names: Annotated[str | None, typer.Option(metavar="NAME,...", help="More names of it.")] = None,
    authority: Annotated[str | None, typer.Option(metavar="SECRET", help="Signs certificates.")] = None,
    status_delay_s: Annotated[float | None, typer.Option(help="Wait of mere pod counts (0.5).")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> Work:
    """Run the AscendJob operator. Flags win over TASKD_CONTROLLER_<NAME>, and these over the file."""
    flags = {name: value for name, value in locals().items() if name != "config"}

    def work() -> int:
        from taskd.cli import controller as command

        return command.run(flags, config)

    return work


@app.command("exit-codes")
def exit_codes() -> Work:
    """Print what the exit codes mean."""
    from taskd.cli import commands

    return commands.show_exit_codes


@app.command()
def version() -> Work:
    """Print the version of TaskD."""
    from taskd.cli import commands

    return commands.show_version


def find_work(words: list[str]) -> Work:
    """Return what a command line asks for."""
    try:
        work = app(args=words or ["--help"], prog_name="taskd", standalone_mode=False)
    except _UsageError as error:
        raise CliError(_usage_sentence(error, words), ExitCode.USAGE) from error
    return work if callable(work) else lambda: ExitCode.OK


def _usage_sentence(error: Exception, words: list[str]) -> str:
    """Make typer's complaint one sentence with the way out."""
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    what = " ".join(text.split()).rstrip(".")
    known = {info.name or getattr(info.callback, "__name__", "") for info in app.registered_commands}
    help_of = f"taskd {words[0]} --help" if words and words[0] in known else "taskd --help"
    return f"{what[:1].lower()}{what[1:]}; `{help_of}` shows what there is"
