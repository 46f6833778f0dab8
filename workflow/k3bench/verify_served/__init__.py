"""One word, one room: greedy tokens of a served engine, before/after beside before/before, and its accuracy.

Out of scope: bits (`k3bench.verify`).
"""

from k3bench.verify_served.asked import PROMPTS, Answer, ask_arm, differences, judge, verify_served

__all__ = ["PROMPTS", "Answer", "ask_arm", "differences", "judge", "verify_served"]
