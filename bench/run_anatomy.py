"""``make anatomy``: see recovery/anatomy.py."""

import sys

from recovery.anatomy import main

if __name__ == "__main__":
    sys.exit(main())
