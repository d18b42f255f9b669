"""Grade programs by their tests: `reward: {function: "arl.reward.code:score"}`."""

from arl.reward.code.judge import score, score_each, vote

__all__ = ["score", "score_each", "vote"]
