"""Entry point of ``python -m conformance.nki``."""

import sys

from conformance.nki.run import main

if __name__ == "__main__":
    sys.exit(main())
