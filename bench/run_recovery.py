"""``make bench-recovery``: see recovery/main.py."""

import sys

from recovery.main import main

if __name__ == "__main__":
    sys.exit(main())
