"""``make bench-operator``: see kubeop/main.py."""

import sys

from kubeop.main import main

if __name__ == "__main__":
    sys.exit(main())
