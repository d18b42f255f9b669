"""Damage bytes, and values of the kind that JSON and YAML hold, at random.

Generators of several edges share these. Whoever tries an edge adds what is special to it: names of fields, files,
limits of types.
"""

import copy
from collections.abc import Callable
from random import Random
from typing import Any

MOST_DAMAGES = 3  # of one input
CHARACTERS = "\n\t\0\u2028\u0085\x1c\x7f\ufeff\ud800\udcff𝔘é"
WORDS = (
    "null ~ true yes off NaN .inf -.INF Infinity 1_000 0x1F 0o17 1e3 1e400 ٣ 2001-12-32 2001-01-01 12:30:45 *a &a << = "
    "--- ../.. / /dev/zero /dev/stdin /proc/self/mem ~root $HOME ${a} %s%n {0.__class__} http://127.0.0.1:1 "
    "file:///etc/passwd -rf --help a/b@c"
)
PHRASES = ["", "a\0b", "\r\n", " ", "!!int ''", "!!python/object/apply:os.getcwd []", "; true"]
LONG = ["a" * 300, "a" * 5_000, "[" * 3_000, "{" * 3_000]
TEXTS = (*CHARACTERS, *WORDS.split(), *PHRASES, *LONG)

POWERS = [2**exponent for exponent in (7, 8, 16, 31, 32, 40, 53, 63, 64)]
AROUND_POWERS = [power + step for power in POWERS for step in (-1, 0, 1)]
INTEGERS = (
    0,
    1,
    -1,
    2,
    7,
    *AROUND_POWERS,
    *(-number for number in AROUND_POWERS),
    10**9,
    10**12,
    10**30,
    10**400,
    10**4_400,
)
FINITE = (0.0, -0.0, 0.1, -0.1, 0.5, 1.0, 1.0000001, 1e-5, 1e-38, 1e-45, 5e-324, 1e30, 3.4e38, 3.5e38, 1e308)
FLOATS = (*FINITE, float("nan"), float("inf"), float("-inf"))

BAD_UTF8 = [b"\xff", b"\xfe\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\xf0\x9f"]
MAGIC = [b"\0", b"\x1f\x8b", b"PK\3\4", b"PAR1", b"\x80\x04."]
MARKS = b"\n|\r\n|\r|:|- |\t|#|\"|'|{|}|[|]|,|&a |*a|>|!".split(b"|")
BYTES = (*BAD_UTF8, *MAGIC, *MARKS, b"|")


def damage_bytes(random: Random, data: bytes) -> bytes:
    """Return `data` with one to three damages: bits, bytes, pieces lost, doubled, moved or put in."""
    for _ in range(random.randint(1, MOST_DAMAGES)):
        data = random.choice(DAMAGES_OF_BYTES)(random, data)
    return data


def damage_value(random: Random, value: Any) -> Any:
    """Return a copy of `value` with one to three damages: parts replaced, lost, doubled or nested."""
    held = [copy.deepcopy(value)]  # so that the whole value has a place, too
    for _ in range(random.randint(1, MOST_DAMAGES)):
        places = list(_places(held))
        random.choice(DAMAGES_OF_VALUES)(random, *random.choice(places), places)
    return held[0]


def hostile_value(random: Random) -> Any:
    """Return a value that readers like to forget."""
    return random.choice(
        (
            lambda: random.choice(TEXTS),
            lambda: random.choice(INTEGERS),
            lambda: random.choice(FLOATS),
            lambda: random.choice((None, True, False, [], {}, [[]], {"": None}, [None], [{}])),
            lambda: [random.choice(INTEGERS)] * random.choice((1, 2, 100, 5_000)),
            lambda: _nested(random.choice((2, 20, 90, 200))),
            lambda: {str(number): number for number in range(random.choice((2, 300)))},
        )
    )()


def _nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


Place = tuple[Any, Any]  # a list or dict, and an index or key of it


def _places(holder: Any) -> list[Place]:
    """Return every place of a value, however deep."""
    found: list[Place] = []
    left = [holder]
    while left:
        inner = left.pop()
        for key in list(inner) if isinstance(inner, dict) else range(len(inner)):
            found.append((inner, key))
            if isinstance(inner[key], dict | list):
                left.append(inner[key])
    return found


def _replace(random: Random, holder: Any, key: Any, places: list[Place]) -> None:
    holder[key] = hostile_value(random)


def _copy_another(random: Random, holder: Any, key: Any, places: list[Place]) -> None:
    other, its_key = random.choice(places)
    if its_key in other if isinstance(other, dict) else its_key < len(other):
        holder[key] = copy.deepcopy(other[its_key])


def _remove(random: Random, holder: Any, key: Any, places: list[Place]) -> None:
    if isinstance(holder, dict):
        del holder[key]
    else:
        holder[key] = None


def _add(random: Random, holder: Any, key: Any, places: list[Place]) -> None:
    if isinstance(holder, dict):
        holder[random.choice((random.choice(TEXTS), f"{key}s", str(key).upper()))] = hostile_value(random)
    else:
        holder[key] = [copy.deepcopy(holder[key]), hostile_value(random)]


def _wrap(random: Random, holder: Any, key: Any, places: list[Place]) -> None:
    holder[key] = random.choice(([holder[key]], {"a": holder[key]}, _text_of(holder[key])))


def _text_of(value: Any) -> str:
    """Return a value as text. Python refuses to print integers of more than 4,300 digits, also within lists."""
    if isinstance(value, int):
        return hex(value)
    return type(value).__name__ if isinstance(value, list | dict) else ascii(value)


def _step_aside(random: Random, holder: Any, key: Any, places: list[Place]) -> None:
    """Change a number by little, so that it is just outside of what fits."""
    value = holder[key]
    if isinstance(value, int | float):
        half = value // 2 if isinstance(value, int) else value / 2
        holder[key] = random.choice((value + 1, value - 1, -value, value * 2, half, value * 10**6))
    elif isinstance(value, str):
        holder[key] = random.choice((value * 2, value[::-1], value.upper(), value + "\0", " " + value, value + "\n"))


def _flip_bit(random: Random, data: bytes) -> bytes:
    if not data:
        return data
    at = random.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]


def _cut_end(random: Random, data: bytes) -> bytes:
    return data[: random.randint(0, len(data))]


def _lose_piece(random: Random, data: bytes) -> bytes:
    begin, end = _piece(random, data)
    return data[:begin] + data[end:]


def _double_piece(random: Random, data: bytes) -> bytes:
    begin, end = _piece(random, data)
    return data[:end] + data[begin:end] * random.choice((1, 1, 20)) + data[end:]


def _move_piece(random: Random, data: bytes) -> bytes:
    begin, end = _piece(random, data)
    rest = data[:begin] + data[end:]
    at = random.randint(0, len(rest))
    return rest[:at] + data[begin:end] + rest[at:]


def _put_in(random: Random, data: bytes) -> bytes:
    at = random.randint(0, len(data))
    return data[:at] + random.choice(BYTES) * random.choice((1, 1, 2, 50)) + data[at:]


def _put_noise_in(random: Random, data: bytes) -> bytes:
    begin, end = _piece(random, data)
    return data[:begin] + random.randbytes(end - begin) + data[end:]


def _zero_piece(random: Random, data: bytes) -> bytes:
    begin, end = _piece(random, data)
    return data[:begin] + bytes(end - begin) + data[end:]


def _piece(random: Random, data: bytes) -> tuple[int, int]:
    begin = random.randint(0, len(data))
    return begin, min(len(data), begin + random.choice((1, 2, 8, 64, 1_024)))


DAMAGES_OF_VALUES: tuple[Callable[[Random, Any, Any, list[Place]], None], ...] = (
    _replace,
    _replace,
    _copy_another,
    _remove,
    _add,
    _wrap,
    _step_aside,
)
DAMAGES_OF_BYTES: tuple[Callable[[Random, bytes], bytes], ...] = (
    _flip_bit,
    _cut_end,
    _lose_piece,
    _double_piece,
    _move_piece,
    _put_in,
    _put_noise_in,
    _zero_piece,
)
