"""What a command says when it cannot do what it was asked.

A mistake of the user's and a job that does not answer are expected: they are one sentence on stderr and an
exit code of the documented table, not a traceback. Whoever finds the problem writes the sentence, with
what, where and what to do; ``main`` only prints it. The tree::

    CliError              any sentence with its exit code
    ├── FlagError         a flag, value, file or variable of `taskd run`         2
    ├── ManagerUnreachable  the job's manager did not answer in time             4
    └── ManagerRefused    the manager answered no, and why                       1

This module imports next to nothing, since every command pays for it.
"""

from taskd.core.exits import ExitCode


class CliError(Exception):
    """An expected failure: a sentence for the user and the code to exit with."""

    def __init__(self, sentence: str, code: int = ExitCode.FAILED) -> None:
        """Take the sentence without a leading "taskd:"; ``main`` adds it."""
        super().__init__(sentence)
        self.sentence = sentence
        self.code = int(code)


class FlagError(CliError):
    """Something in the command line or in the environment of ``taskd run`` is wrong."""

    def __init__(self, sentence: str) -> None:
        """Nothing was started."""
        super().__init__(sentence, ExitCode.USAGE)


class ManagerUnreachable(CliError):
    """The manager of a job did not answer."""

    def __init__(self, sentence: str) -> None:
        """Say what was tried."""
        super().__init__(sentence, ExitCode.USAGE)


class ManagerRefused(CliError):
    """The manager understood and said no."""
