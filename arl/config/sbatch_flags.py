"""Check the flags of sbatch that a recipe gives."""

import re
from collections.abc import Mapping

OF_ARL = {  # flags that arl gives itself, and what to do instead
    "nodes": "give cluster.nodes, or --nodes",
    "array": "each task of an array would train the same run; start several runs, or a sweep",
    "output": "the output goes to job.log beside the job's script, where a requeued job goes on with it",
    "error": "the output goes to job.log beside the job's script, where a requeued job goes on with it",
}
SIGNAL = "B:TERM@"  # begins the only signal that ends a run with a checkpoint: SIGTERM, to the script alone
TIME = re.compile(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}|unlimited|infinite", re.IGNORECASE)  # man sbatch
NO_WORD = re.compile(r"[\s=]")  # \s is every end of a line as well
NO_TEXT = re.compile(r"[\x00-\x1f\x7f\u2028\u2029\x85]")
TIMES = ("time", "time-min")


def check_sbatch_flags(field: str, flags: Mapping[str, str]) -> None:
    """Check the flags of the recipe's `field`.

    Raises:
        ValueError: one has dashes or control characters, is arl's to give, or would end the run without a checkpoint.
    """
    for name, value in flags.items():
        if NO_WORD.search(name) or NO_TEXT.search(value):  # would begin another line of the job's script
            raise ValueError(f"{field}.{name!r} {value!r}: a flag is one word, and its value one line of text")
        if name.startswith("-"):
            raise ValueError(f"{field}.{name}: give flags without their dashes: {name.lstrip('-')}")
        if name in OF_ARL:
            raise ValueError(f"{field}.{name} {value!r}: arl gives this flag itself ({OF_ARL[name]}); leave it out")
        if name == "signal" and not re.fullmatch(rf"{SIGNAL}\d+", value):
            raise ValueError(
                f"{field}.signal {value!r}: only SIGTERM to the script ends the run with a checkpoint; give "
                f"{SIGNAL}SECONDS, as in {SIGNAL}900"
            )
        if name in TIMES and not TIME.fullmatch(value):
            raise ValueError(
                f"{field}.{name} {value!r}: sbatch does not read it; give hours:minutes:seconds, as in 08:00:00, "
                "days-hours, as in 1-12, or minutes"
            )
