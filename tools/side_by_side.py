"""Run two commands at once: the first one's output as it comes, the second one's when it has ended.

    python tools/side_by_side.py 'first command' 'second command'

Ends with 0 only if both did. The tests that train leave a core free most of the time, and the tests on
Kubernetes wait for it.
"""

import shlex
import subprocess
import sys
import tempfile


def main(first: str, second: str) -> int:
    """Run both; returns the first code that is not 0."""
    with tempfile.TemporaryFile() as output:
        # It has time until the first one ends, and must not slow that one down.
        beside = subprocess.Popen(
            ["nice", "-n", "10", *shlex.split(second)], stdout=output, stderr=subprocess.STDOUT
        )
        try:
            code = subprocess.run(shlex.split(first), check=False).returncode
            code_beside = beside.wait()
        finally:
            if beside.poll() is None:
                beside.terminate()
                beside.wait()
        output.seek(0)
        sys.stdout.flush()
        sys.stdout.buffer.write(output.read())
        sys.stdout.flush()
    return code or code_beside


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
