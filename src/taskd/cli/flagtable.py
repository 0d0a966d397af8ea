"""The flags of ``taskd run``, and the reading of a command line into named texts.

torchrun's users type the flags they know: with dashes or underscores, cut short, or as ``PET_*`` variables.
argparse alone does not read them well. It looks at every word before it knows where the script begins, so
an argument of the script that resembles a flag (``train.py --max 10``) ends in "ambiguous option", and it
takes the two spellings of one flag for two flags when they are cut short. So the words are walked here,
left to right, up to the script; whatever follows belongs to the script, untouched. argparse still prints
the help.

Nothing is converted here. A value stays a text beside where it came from, because the complaint about it
has to name the flag or the variable that the user can change.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from taskd.cli.errors import FlagError

USAGE = "taskd run [flags] script.py [arguments of the script]"
ENV_PREFIX = "PET_"

_NEGATIVE_NUMBER = re.compile(r"-\d+(\.\d*)?")


class HelpRequested(Exception):
    """The user asked for the flags instead of a run."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. Without a metavar it is a switch. ``from_env``: torchrun also reads PET_<NAME>."""

    name: str
    help: str
    metavar: str = ""
    short: str = ""
    from_env: bool = True
    group: str = "torchrun's flags"

    @property
    def variable(self) -> str:
        """Return the name of the environment variable that stands in for the flag."""
        return ENV_PREFIX + self.name.replace("-", "_").upper()


_OWN = "TaskD's own flags"
_IGNORED = "accepted for torchrun's sake, without effect"

FLAGS: tuple[Flag, ...] = (
    Flag("nnodes", "number of nodes, N or MIN:MAX (default 1)", "N"),
    Flag("nproc-per-node", "processes per node: a number, auto, cpu, gpu or npu (default 1)", "N"),
    Flag("node-rank", "rank of this node in a static set-up (default 0)", "N"),
    Flag("master-addr", "address of node 0 in a static set-up (default 127.0.0.1)", "ADDR"),
    Flag("master-port", "port on node 0 in a static set-up (default 29500)", "PORT"),
    Flag("local-addr", "address under which the other nodes reach this one", "ADDR"),
    Flag("standalone", "one node, with addresses and ports chosen by TaskD"),
    Flag("rdzv-backend", "how nodes find each other: static or c10d (default static)", "NAME"),
    Flag("rdzv-endpoint", "where nodes meet, HOST or HOST:PORT (port 29400 if not given)", "ENDPOINT"),
    Flag("rdzv-id", "name that the nodes of one job share", "ID"),
    Flag("rdzv-conf", "KEY=VALUE,…: timeout, join_timeout, last_call_timeout (seconds), is_host", "CONF"),
    Flag("max-restarts", "faults that a container may have before the job fails (default 32767)", "N"),
    Flag(
        "monitor-interval", "seconds between looks where the kernel does not tell of deaths (default 5)", "S"
    ),
    Flag("shutdown-timeout", "seconds that processes get to end before they are killed (default 30)", "S"),
    Flag("role", "name of the workers' role (default default)", "NAME"),
    Flag("module", "run the script as a Python module, as `python -m` does", short="m"),
    Flag("no-python", "run the script as a command of its own, without Python"),
    Flag("run-path", "run the script by its path; takes precedence over --no-python"),
    Flag("log-dir", "directory for the output of the ranks", "DIR"),
    Flag(
        "redirects", "streams to files: 0 none, 1 stdout, 2 stderr, 3 both; or 0:1,1:2 per rank", "STD", "r"
    ),
    Flag("tee", "streams to write to files and to the console, as for --redirects", "STD", "t"),
    Flag("local-ranks-filter", "local ranks whose output the console shows, such as 0,1", "RANKS"),
    Flag("log-line-prefix-template", "what begins a line of a rank on the console", "TEXT"),
    Flag("start-method", "spawn, fork or forkserver; TaskD has its own way", "NAME", group=_IGNORED),
    Flag("event-log-handler", "torchrun's event log; see `taskd timeline`", "NAME", group=_IGNORED),
    Flag("duplicate-stdout-filters", "see `taskd logs`", "WORDS", group=_IGNORED),
    Flag("duplicate-stderr-filters", "see `taskd logs`", "WORDS", group=_IGNORED),
    Flag("logs-specs", "torchrun's log plug-in", "NAME", from_env=False, group=_IGNORED),
    Flag("numa-binding", "binding of processes to processors", "MODE", from_env=False, group=_IGNORED),
    Flag("signals-to-handle", "TaskD passes on those that end a job", "NAMES", group=_IGNORED),
    Flag("virtual-local-rank", "not possible with TaskD: refused", group=_IGNORED),
    Flag("spares", "warm processes kept for replacements (default 0)", "N", from_env=False, group=_OWN),
    Flag("local-nodes", "play N nodes on this machine", "N", from_env=False, group=_OWN),
    Flag("spare-nodes", "keep N more nodes of this machine for lost ones", "N", from_env=False, group=_OWN),
    Flag("dump-dir", "where the state goes when there is no way on", "DIR", from_env=False, group=_OWN),
    Flag("resume", "go on from the newest checkpoint or dump in DIR", "DIR", from_env=False, group=_OWN),
    Flag("faults", "schedule of faults to inject, JSON lines", "FILE", from_env=False, group=_OWN),
    Flag("keep-trying", "go on when the same failure keeps coming back", from_env=False, group=_OWN),
    Flag(
        "hang-floor",
        "least seconds of silence in a step before a rank counts as hanging (default 30)",
        "S",
        from_env=False,
        group=_OWN,
    ),
    Flag("hang-ceiling", "most seconds, whatever was learned (1800)", "S", from_env=False, group=_OWN),
    Flag("job", "name of the job for the other commands", "NAME", from_env=False, group=_OWN),
    Flag(
        "manager-port",
        "the manager's port (default 9601; a free one if alone)",
        "PORT",
        from_env=False,
        group=_OWN,
    ),
    Flag(
        "recover-strategy",
        "allowed ways of recovery, with commas between: "
        "retry, recover, recover-in-place, elastic-training, dump, exit",
        "NAMES",
        from_env=False,
        group=_OWN,
    ),
)

WITHOUT_EFFECT = tuple(flag.name for flag in FLAGS if flag.group == _IGNORED and flag.metavar)

_BY_NAME = {flag.name: flag for flag in FLAGS}
_BY_SHORT = {flag.short: flag for flag in FLAGS if flag.short}
_HELP = "help"


@dataclass(frozen=True, slots=True)
class Given:
    """What the user gave: texts by flag, the words that brought them, and the script with its arguments."""

    texts: Mapping[str, str]
    words: Mapping[str, str]
    script: str
    script_args: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    found: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """What the surroundings say where the user says nothing: a text, and the variable that it is from."""

    def has(self, name: str) -> bool:
        """Tell whether the user gave this flag or its variable."""
        return self.text(name) is not None

    def text(self, name: str) -> str | None:
        """Return the text of a flag, from the command line or else from its variable."""
        if name in self.texts:
            return self.texts[name]
        flag = _BY_NAME[name]
        if flag.from_env and flag.variable in self.env:
            return self.env[flag.variable]
        return self.found[name][0] if name in self.found else None

    def origin(self, name: str) -> str:
        """Name where the text of a flag comes from, for a person; empty where it was not given."""
        if name in self.texts:
            return self.words[name]
        flag = _BY_NAME[name]
        if flag.from_env and flag.variable in self.env:
            return flag.variable
        return self.found[name][1] if name in self.found else ""

    def is_on(self, name: str) -> bool:
        """Tell whether a switch is on. A variable counts as torchrun has it: a number that is not 0."""
        if name in self.texts:
            return True
        text = self.text(name)
        if text is None:
            return False
        try:
            return bool(int(text))
        except ValueError:
            raise self.complain(name, "a switch is 1 or 0") from None

    def complain(self, name: str, rule: str) -> FlagError:
        """Make the sentence about a wrong value: where it stands, what it is, what it should be."""
        if name in self.texts:
            value = f" {self.texts[name]}" if _BY_NAME[name].metavar else ""
            return FlagError(f"{self.words[name]}{value}: {rule}")
        where = f"{self.origin(name) or _BY_NAME[name].variable}={self.text(name) or ''} in the environment"
        return FlagError(f"{where}: {rule}; correct or unset it")


def read_flags(argv: Sequence[str], env: Mapping[str, str]) -> Given:
    """Read a command line up to its script; the rest is the script's own."""
    texts: dict[str, str] = {}
    words: dict[str, str] = {}
    rest = list(argv)
    while rest and _is_flag(rest[0]):
        word = rest.pop(0)
        if word == "--":
            break
        flag, spelling, text = _recognise(word)
        if flag.metavar and text is None:
            if not rest or _is_flag(rest[0]):
                raise FlagError(f"{spelling} needs a value ({flag.help}); write {spelling} {flag.metavar}")
            text = rest.pop(0)
        elif not flag.metavar and text is not None:
            raise FlagError(f"{spelling} is a switch and takes no value; leave out ={text}")
        texts[flag.name] = text or ""
        words[flag.name] = spelling
    if not rest:
        raise FlagError(f"no script to run; write {USAGE}")
    return Given(texts, words, rest[0], tuple(rest[1:]), env)


def format_help() -> str:
    """Lay out the help of ``taskd run``."""
    import argparse

    parser = argparse.ArgumentParser(
        prog="taskd run",
        usage=USAGE,
        description="Start a training job and keep it running.",
        epilog=(
            "Underscores are as good as dashes, and a flag may be cut short while it is unmistakable. "
            "torchrun's flags are also read from PET_* variables, such as PET_NNODES."
        ),
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=34, width=100),
        add_help=False,
    )
    groups = {name: parser.add_argument_group(name) for name in dict.fromkeys(flag.group for flag in FLAGS)}
    for flag in FLAGS:
        group = groups[flag.group]
        names = [f"-{flag.short}"] if flag.short else []
        names.append(f"--{flag.name}")
        if flag.metavar:
            group.add_argument(*names, metavar=flag.metavar, help=flag.help)
        else:
            group.add_argument(*names, action="store_true", help=flag.help)
    return parser.format_help()


def _is_flag(word: str) -> bool:
    """Tell a flag from a value or a script; a dash alone, a negative number or a phrase is no flag."""
    name = word.partition("=")[0]
    return len(name) > 1 and name.startswith("-") and " " not in name and not _NEGATIVE_NUMBER.fullmatch(name)


def _recognise(word: str) -> tuple[Flag, str, str | None]:
    """Return the flag that a word means, how the user spelled it, and the value if it is attached."""
    if not word.startswith("--"):
        return _recognise_short(word)
    spelling, equals, value = word.partition("=")
    return _find(spelling), spelling, value if equals else None


def _recognise_short(word: str) -> tuple[Flag, str, str | None]:
    spelling, attached = word[:2], word[2:]
    if spelling == "-h":
        raise HelpRequested
    flag = _BY_SHORT.get(spelling[1])
    if flag is None or (attached and not flag.metavar):
        raise _unknown(word)
    return flag, spelling, attached.removeprefix("=") or None


def _find(spelling: str) -> Flag:
    name = spelling[2:].replace("_", "-")
    if name in _BY_NAME:
        return _BY_NAME[name]
    matches = [known for known in (*_BY_NAME, _HELP) if known.startswith(name)]
    if matches == [_HELP]:
        raise HelpRequested
    if len(matches) > 1:
        choices = " or ".join(f"--{match}" for match in matches)
        raise FlagError(f"{spelling} could be {choices}; write it out")
    if not matches:
        raise _unknown(spelling)
    return _BY_NAME[matches[0]]


def _unknown(spelling: str) -> FlagError:
    import difflib

    close = difflib.get_close_matches(spelling.lstrip("-").replace("_", "-"), _BY_NAME, n=1)
    guess = f"did you mean --{close[0]}? " if close else ""
    return FlagError(f"{spelling} is not a flag of `taskd run`; {guess}`taskd run --help` lists them")
