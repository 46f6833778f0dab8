"""The trace stage: what two streams really did, from GPU traces. In: traces. Out: `k3bench.residency/1`."""
