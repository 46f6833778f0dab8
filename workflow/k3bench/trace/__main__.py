"""`python -m k3bench.trace`: the same as `k3bench trace`."""

from k3bench.trace.command import main

raise SystemExit(main())
