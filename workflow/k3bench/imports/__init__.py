"""One reader per foreign result format; every reader gives `k3bench.reported/1` and never a measurement."""
