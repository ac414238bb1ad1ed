"""``python -m jitgemm``."""

import sys

from jitgemm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
