"""`python -m k3bench` is the command `k3bench`."""

import sys

from k3bench.cli import main

sys.exit(main())
