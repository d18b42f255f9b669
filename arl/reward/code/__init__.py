"""Grade programs by their tests: `reward: {function: "arl.reward.code:score"}`."""

from arl.reward.code.judge import WEIGHTS, score, score_each, vote

__all__ = ["WEIGHTS", "score", "score_each", "vote"]
