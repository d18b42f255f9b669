r"""Answers that are made to hang a grader, fill its memory, or confuse it: drawn from families, by a seed."""

import random
from collections.abc import Callable

Family = Callable[[random.Random], str]
LONG = 100_000  # characters


def _nested(draw: random.Random) -> str:
    opening, closing = draw.choice([("(", ")"), ("[", "]"), ("{", "}"), (r"\{", r"\}"), (r"\left(", r"\right)")])
    depth = draw.choice([20, 200, 2_000, 20_000])
    return opening * depth + "1" + closing * draw.choice([depth, depth - 1, 0])


def _nested_command(draw: random.Random) -> str:
    command = draw.choice([r"\sqrt{", r"\frac{1}{", r"\sin(", r"\boxed{", r"\text{", r"2^{", r"|"])
    depth = draw.choice([5, 15, 100, 3_000])
    closing = {"(": ")", "{": "}"}.get(command[-1], command)
    return command * depth + "1" + closing * depth


def _tower(draw: random.Random) -> str:
    base = draw.randint(2, 99)
    height = draw.randint(2, 9)
    return f"{base}^{{" * height + str(base) + "}" * height


def _huge_power(draw: random.Random) -> str:
    base = draw.choice(["2", "10", "x", "(x+1)", "(x+y+z)", r"\pi", "1.0000001", r"\left(1+\sqrt{2}\right)", "e", "i"])
    return f"{base}^{{{draw.choice([5_000, 10**4, 10**6, 10**9, 10**20, 10**300])}}}"


def _factorial(draw: random.Random) -> str:
    number = draw.choice(["3000", "99999", "(10^9)", "(2^{40})", "10^{9}", "((5!)!)", "20!", "(x^{99})", "170!!"])
    return number + "!" * draw.randint(1, 5)


def _long_text(draw: random.Random) -> str:
    piece = draw.choice(
        [
            "1",
            "9,",
            "x+",
            " ",
            "\\",
            "$",
            "#### ",
            r"\boxed{",
            r"\frac{1}{2}+",
            "a=",
            "-",
            "1/",
            "answer is ",
            "\0",
            "<answer>",
        ]
    )
    return (piece * (LONG // len(piece)))[:LONG]


def _digits(draw: random.Random) -> str:
    zero = draw.choice("0０٠०๐𝟎𝟘")
    digits = "".join(chr(ord(zero) + draw.randrange(10)) for _ in range(draw.choice([3, 50, 5_000])))
    return draw.choice(["", "-", "−", "."]) + digits + draw.choice(["", "%", "/0", "e999999999", "!", "_7", "²³⁴"])


def _boxes(draw: random.Random) -> str:
    depth = draw.randint(1, 400)
    return r"\boxed{" * depth + draw.choice(["5", "", "}", "{", r"\boxed"]) + "}" * draw.randint(0, depth + 2)


def _loops(draw: random.Random) -> str:
    size = draw.choice(["1000", "10^9", "10^{12}", r"\infty", "999999"])
    return draw.choice(
        [
            rf"\sum_{{k=1}}^{{{size}}} \frac{{1}}{{k^2+k+1}}",
            rf"\prod_{{k=1}}^{{{size}}} (k^2+1)",
            rf"\binom{{{size}}}{{{size}-7}}",
            r"\binom{10^9}{5\cdot 10^8}",
            rf"\int_0^{{{size}}} e^{{-x^4}} \sin(x^3) dx",
            rf"\lim_{{n\to\infty}} n^{{{size}}} \sin(\frac{{1}}{{n}})",
            rf"\gcd({size}!, {size})",
            rf"{size} \bmod 7^{{{size}}}",
        ]
    )


def _products(draw: random.Random) -> str:
    count = draw.choice([10, 40, 150, 2_000])
    factors = [f"(x^{draw.randint(1, 99)}+{draw.randint(1, 99)}y)" for _ in range(count)]
    return draw.choice(["", r"\cdot "]).join(factors)


def _matrix(draw: random.Random) -> str:
    size = draw.choice([2, 10, 60])
    row = " & ".join(draw.choice(["1", "x^{99}", r"\frac{1}{x}", r"\sqrt{2}"]) for _ in range(size))
    power = draw.choice(["", "^{-1}", "^{100}", "^{100000}", "!"])
    return r"\begin{pmatrix}" + r"\\".join([row] * size) + r"\end{pmatrix}" + power


FAMILIES: tuple[Family, ...] = (
    _nested,
    _nested_command,
    _tower,
    _huge_power,
    _factorial,
    _long_text,
    _digits,
    _boxes,
    _loops,
    _products,
    _matrix,
)


def hostile_responses(count: int, seed: int) -> list[str]:
    """Draw responses from all families in turn, most of them as the content of a box."""
    draw = random.Random(seed)
    responses = []
    for index in range(count):
        answer = FAMILIES[index % len(FAMILIES)](draw)
        frame = draw.choice([r"So it is \boxed{%s}.", "#### %s", "The answer is $%s$.", "%s"])
        responses.append(frame.replace("%s", answer))
    return responses
