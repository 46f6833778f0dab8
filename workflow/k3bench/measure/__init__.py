"""The measure stage: walk the plan's blocks, one point on disk before the next begins."""
