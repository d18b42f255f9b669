"""Have the client of engine servers read damaged answers: none may pass for tokens, a version, a load or a checksum."""

import asyncio
import contextlib
import json
import math
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct

from arl.engine.http.engine_client import HttpEngine
from arl.errors import DeadlineError, EngineError
from arl.launch.address import LOOPBACK
from arl.types import GenerateRequest, SamplingParams, WeightUpdate
from tests.fuzz.damage import damage_bytes, damage_value
from tests.fuzz.http_requests import as_json
from tests.fuzz.trials import Draw, Edge, Trial

VOCAB = 16
BUDGET = 6
SECONDS = 0.5  # deadlines of the client
ENDLESS_BYTES = 256 << 20  # after which even an endless answer ends
INFO = {"model_path": "m", "weight_version": "1", "vocab_size": VOCAB, "context_length": 64}
LOADS = {
    "loads": [
        {
            "num_running_reqs": 1,
            "num_waiting_reqs": 0,
            "max_running_requests": 8,
            "num_total_tokens": 10,
            "max_total_num_tokens": 100,
        }
    ]
}
DONE = b"data: [DONE]\n\n"
ASKED = GenerateRequest("asked", (1, 2), SamplingParams(BUDGET, stop_token_ids=(9,)))
Use = Callable[[HttpEngine], Awaitable[None]]


class Answer(Struct, frozen=True):
    """Hold what the server answers one path with, as bytes of HTTP, and what it goes on with without end."""

    path: str
    wire: bytes
    forever: bytes = b""


def _events() -> list[dict[str, Any]]:
    """Return the increments of a whole answer."""
    events = []
    parts: tuple[tuple[list[int], str | None], ...] = (([1, 2], None), ([3, 4], None), ([5, 6], "length"))
    for number, (ids, finish) in enumerate(parts):
        meta = {
            "id": "x",
            "finish_reason": finish and {"type": finish},
            "completion_tokens": 2 * number + 2,
            "output_token_logprobs": [[-0.5, token, None] for token in ids],
            "weight_version": "1",
            "weight_versions": [{"version": "1", "start": 2 * number, "end": 2 * number + 2}],
        }
        events.append({"index": 0, "output_ids": ids, "meta_info": meta})
    return events


def _http(body: bytes, headers: bytes = b"Content-Type: application/json\r\n", status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\n%sContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status, headers, len(body), body)


def _stream(events: list[Any], end: bytes = DONE) -> bytes:
    lines = b"".join(b"data: " + as_json(event) + b"\n\n" for event in events)
    return b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + lines + end


def _draw(random: Random) -> tuple[Answer, Use]:
    if random.random() < 0.6:
        return _generate_answer(random), _generate
    path, body, use = random.choice(
        (
            ("/model_info", INFO, _generate),
            ("/v1/loads", LOADS, _report),
            ("/update_weights_from_disk", {"success": True, "message": "m"}, _update),
            ("/weights_checker", {"ranks": [{"checksums": {"a": "0"}}]}, _update),
        )
    )
    return _command_answer(random, path, body), use


def _command_answer(random: Random, path: str, body: Any) -> Answer:
    data = as_json(damage_value(random, body))
    if random.random() < 0.3:
        data = damage_bytes(random, data)
    whole = _http(data)
    if random.random() < 0.2:
        status = random.choice((b"400 Bad", b"302 Found", b"500 X", b"204 None", b"999 X", b"\xff", b"101 Switch"))
        whole = _http(data, b"Location: http://127.0.0.1:1/\r\nSet-Cookie: \xff=\xff; a\r\n", status)
    if random.random() < 0.1:
        whole = _http(data, b"Content-Encoding: %s\r\n" % random.choice((b"gzip", b"deflate", b"\xff")))
    if random.random() < 0.2:
        whole = damage_bytes(random, whole)
    if random.random() < 0.03:
        return Answer(path, b"HTTP/1.1 200 OK\r\n\r\n[", b"1," * 100_000)
    return Answer(path, whole)


def _generate_answer(random: Random) -> Answer:
    events = damage_value(random, _events())
    if random.random() < 0.4:
        events = _events()
        _damage_field(random, random.choice(events))
    whole = _stream(events if isinstance(events, list) else [events], random.choice((DONE, DONE, DONE, b"")))
    if random.random() < 0.25:
        whole = damage_bytes(random, _stream(_events()) if random.random() < 0.5 else whole)
    if random.random() < 0.03:
        empty = {"index": 0, "output_ids": [], "meta_info": {"id": "x", "finish_reason": None}}
        return Answer("/generate", _stream([], b""), (b"data: " + as_json(empty) + b"\n\n") * 100)
    if random.random() < 0.02:
        return Answer("/generate", _stream([], b"data: "), b"1," * 100_000)
    return Answer("/generate", whole)


def _damage_field(random: Random, event: dict[str, Any]) -> None:
    """Give one field a value of its own kind that cannot be."""
    meta = event["meta_info"]
    logprobs = meta["output_token_logprobs"]
    span = meta["weight_versions"][0]
    ids = random.choice(([1], [1, 2, 3], [VOCAB, 1], [-1, 1], [2**31, 1], [2**63, 1], [1] * 100))
    versions = ("2", "-1", "999999999999", "9" * 5000, "default", "", "1.0", "٣", "2147483648", "0")
    random.choice(
        (
            lambda: event.update(output_ids=ids),
            lambda: (event.update(output_ids=ids), logprobs.clear(), logprobs.extend([-0.5, i, None] for i in ids)),
            lambda: event.update(index=random.choice((1, -1, 2**40))),
            lambda: logprobs[0].__setitem__(0, random.choice((0.5, 1e-9, math.nan, math.inf, -math.inf, -1e400, "x"))),
            lambda: logprobs[0].__setitem__(1, 7),
            logprobs.pop,
            lambda: meta.update(completion_tokens=random.choice((0, 1, 3, -2, 2**60))),
            lambda: meta.update(finish_reason={"type": random.choice(("stop", "length", "abort", "other"))}),
            lambda: meta.update(finish_reason={"type": "abort", "message": "m" * random.choice((1, 100_000))}),
            lambda: span.update(version=random.choice(versions)),
            lambda: (meta.pop("weight_versions"), meta.update(weight_version=random.choice(versions))),
            lambda: span.update(end=random.choice((0, 1, -5, 2**50))),
            lambda: meta.update(weight_versions=[]),
        )
    )()


async def _generate(engine: HttpEngine) -> None:
    """Generate, and check that what passes is possible."""
    ids: list[int] = []
    last = None
    async for new in engine.generate(ASKED):
        assert len(new.token_ids) == len(new.logprobs) == len(new.policy_versions)
        assert all(0 <= token < VOCAB for token in new.token_ids), new
        assert all(-math.inf < logprob <= 0.0 for logprob in new.logprobs), new
        assert all(0 <= version <= engine.loaded_version for version in new.policy_versions), new
        ids += new.token_ids
        last = new.finish_reason
    assert last in ("stop", "length"), last
    assert len(ids) <= BUDGET, ids


async def _report(engine: HttpEngine) -> None:
    load = await engine.report()
    assert math.isfinite(load.free(1, 1)), load


async def _update(engine: HttpEngine) -> None:
    await engine.update_weights(WeightUpdate(2, "m", checksums={"a": "0"}))


class AnsweringServer:
    """Answer each path, and one of them with what is given."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._talks: set[asyncio.Task[Any]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, and close the connection."""
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            path = await _asked_path(reader)
            is_damaged = path == self._answer.path
            writer.write(self._answer.wire if is_damaged else _whole_answer(path))
            await writer.drain()
            left = ENDLESS_BYTES if is_damaged and self._answer.forever else 0
            while left > 0:
                writer.write(self._answer.forever)
                left -= len(self._answer.forever)
                await writer.drain()
        writer.close()

    async def close(self) -> None:
        """Break off every connection."""
        for task in self._talks:
            task.cancel()
        await asyncio.gather(*self._talks)


async def _try(answer: Answer, use: Use, seconds: float = SECONDS) -> None:
    """Serve whole answers and the damaged one, and use the client."""
    answering = AnsweringServer(answer)
    server = await asyncio.start_server(answering.serve, LOOPBACK, 0)
    url = f"http://{LOOPBACK}:{server.sockets[0].getsockname()[1]}"
    try:
        async with HttpEngine(url, generate_seconds=seconds, swap_seconds=seconds) as engine:
            await use(engine)
    except (EngineError, DeadlineError) as error:
        if url not in str(error):
            raise AssertionError(f"it names no engine: {error}") from error
        raise
    finally:
        server.close()
        await answering.close()


async def _asked_path(reader: asyncio.StreamReader) -> str:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
    await reader.readexactly(length)
    return head.split(b" ")[1].decode().partition("?")[0]


def _whole_answer(path: str) -> bytes:
    if path == "/generate":
        return _stream(_events())
    bodies = {"/model_info": INFO, "/v1/loads": LOADS, "/weights_checker": {"ranks": [{"checksums": {"a": "0"}}]}}
    return _http(json.dumps(bodies.get(path, {})).encode())


@contextlib.contextmanager
def prepare(folder: Path) -> Iterator[Draw]:
    """Check that whole answers are taken, then draw damaged ones."""
    whole = Answer("/none", b"")
    for use in (_generate, _report, _update):
        asyncio.run(_try(whole, use, 20.0))

    def draw(random: Random) -> Trial:
        answer, use = _draw(random)
        shown = f"{answer.path}: {answer.wire[:600]!r} then {answer.forever[:20]!r}"
        return Trial(shown, lambda: asyncio.run(_try(answer, use)))

    yield draw


ENGINE_ANSWERS = Edge(prepare, trials=200, refuses=EngineError)
