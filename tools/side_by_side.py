"""Run a command, and beside it others one after the other, whose output follows when all have ended.

    python tools/side_by_side.py 'the long one' 'one beside it' 'the next one beside it' ...

Ends with 0 only if all did. The tests that train leave a core free most of the time, and the others use it.
"""

import shlex
import subprocess
import sys
import tempfile
import threading
from typing import IO


class Beside:
    """Commands that run one after the other; those after one that failed are run all the same."""

    def __init__(self, commands: list[str], output: IO[bytes]) -> None:
        """Begin with the first of them."""
        self._commands = commands
        self._output = output
        self._running: subprocess.Popen[bytes] | None = None
        self._ended = threading.Lock()
        self.code = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while self._commands:
            with self._ended:
                if not self._commands:
                    return
                command = shlex.split(self._commands.pop(0))
                self._running = subprocess.Popen(command, stdout=self._output, stderr=subprocess.STDOUT)
            self.code = self._running.wait() or self.code

    def wait(self) -> int:
        """Wait for all; returns the last code that is not 0."""
        self._thread.join()
        return self.code

    def end(self) -> None:
        """Begin no other one, and end the one that runs."""
        with self._ended:
            self._commands.clear()
            if self._running is not None and self._running.poll() is None:
                self._running.terminate()
        self._thread.join()


def main(first: str, *others: str) -> int:
    """Run all; returns a code that is not 0, if there is one."""
    with tempfile.TemporaryFile() as output:
        beside = Beside([*others], output)
        try:
            code = subprocess.run(shlex.split(first), check=False).returncode
            code_beside = beside.wait()
        finally:
            beside.end()
        output.seek(0)
        sys.stdout.flush()
        sys.stdout.buffer.write(output.read())
        sys.stdout.flush()
    return code or code_beside


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
