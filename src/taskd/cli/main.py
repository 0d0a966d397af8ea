"""The command line: what is asked for, and what becomes of it.

``taskd run`` goes past typer, which has the other commands (``app``). Its flags are torchrun's, with rules of
their own, and what follows the script must not be looked at. Nor is typer imported for it: in a new pod of a
job that waits, every import before the launcher's first act is time without training.

Whatever goes wrong ends here, as one sentence on stderr and a code of the table in ``core.exits``. A
traceback is for a defect in TaskD, and then only with TASKD_DEBUG=1.
"""

import os
import sys
from collections.abc import Sequence

from taskd.cli.errors import CliError
from taskd.core.exits import ExitCode

_SIGINT_CODE = int(ExitCode.SIGNAL_BASE) + 2
_SIGPIPE_CODE = int(ExitCode.SIGNAL_BASE) + 13


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return int(_dispatch(words))
    except CliError as error:
        return _fail(error.sentence, error.code)
    except KeyboardInterrupt:
        return _SIGINT_CODE
    except BrokenPipeError:
        # The reader has enough (`taskd logs … | head`). Nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _SIGPIPE_CODE
    except Exception as error:
        if os.environ.get("TASKD_DEBUG") == "1":
            raise
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        return _fail(f"a defect in TaskD: {what}; TASKD_DEBUG=1 shows where", ExitCode.INTERNAL)


def _dispatch(words: list[str]) -> int:
    if words[:1] == ["run"]:
        return _run(words[1:])
    if words == ["--version"]:
        words = ["version"]
    from taskd.cli.app import find_work

    return find_work(words)()


def _run(words: list[str]) -> int:
    """Parse the flags and hand over to the launcher."""
    from taskd.cli.flags import parse_run
    from taskd.cli.flagtable import HelpRequested, format_help
    from taskd.cli.machine import this_machine

    try:
        request = parse_run(words, this_machine())
    except HelpRequested:
        print(format_help(), end="")
        return ExitCode.OK
    for note in request.notes:
        print(f"taskd: note: {note}", file=sys.stderr, flush=True)
    from taskd import launcher

    return int(launcher.run(request.spec))


def _fail(sentence: str, code: int) -> int:
    print(f"taskd: {sentence}", file=sys.stderr, flush=True)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
