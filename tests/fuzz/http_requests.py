"""Draw HTTP requests of the embedded server, damaged at every level: values, bytes, headers, framing, size."""

import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct

from tests.fuzz.damage import INTEGERS, TEXTS, damage_bytes, damage_value, hostile_value

Headers = list[tuple[str, bytes]]
SAMPLING = {
    "max_new_tokens": 5,
    "temperature": 1.0,
    "top_p": 0.9,
    "top_k": 8,
    "stop_token_ids": [3],
    "ignore_eos": True,
}
GENERATE = {
    "input_ids": [1, 2, 3],
    "rid": "hostile",
    "sampling_params": {**SAMPLING, "sampling_seed": 7},
    "stream": True,
    "return_logprob": True,
}
GROUP = {
    "master_address": "127.0.0.1",
    "master_port": 1,
    "rank_offset": 1,
    "world_size": 2,
    "group_name": "g",
    "backend": "gloo",
}
BUCKET = {
    "names": ["model.norm.weight"],
    "dtypes": ["float32"],
    "shapes": [[64]],
    "group_name": "g",
    "load_format": "flattened_bucket",
    "weight_version": "1",
    "flush_cache": False,
}
BODIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/generate", GENERATE),
    ("/generate", {**GENERATE, "stream": False}),
    ("/generate", {"input_ids": [[1], [2, 3]], "rid": ["a", "b"], "sampling_params": [SAMPLING, SAMPLING]}),
    ("/generate", {"input_ids": [4, 5], "sampling_params": {"max_new_tokens": 3}}),
    ("/pause_generation", {"mode": "in_place"}),
    ("/continue_generation", {}),
    ("/abort_request", {"rid": "hostile", "abort_all": False}),
    ("/flush_cache", {}),
    ("/release_memory_occupation", {"tags": ["kv_cache"]}),
    ("/resume_memory_occupation", {"tags": ["kv_cache"]}),
    ("/init_weights_update_group", GROUP),
    ("/destroy_weights_update_group", {"group_name": "g"}),
    ("/update_weights_from_distributed", BUCKET),
    ("/weights_checker", {"action": "checksum"}),
)
UPDATE = {"model_path": "", "weight_version": "1", "flush_cache": False, "load_format": None}
LONG = "a long integer"
GETS = ("/health", "/server_info", "/model_info", "/v1/loads?include=core")
FIELDS = (
    *("n", "stop", "min_p", "temperature", "top_k", "top_p", "max_new_tokens", "stop_token_ids", "sampling_seed"),
    *("weight_version", "rid", "text", "input_embeds", "ignore_eos", "stream", "return_logprob", "extra_key"),
)


class Request(Struct, frozen=True):
    """Hold one request as bytes."""

    what: str
    path: str
    wire: bytes
    is_http: bool  # else the connection may close without an answer
    is_json: bool  # the body is what a server may take


def draw_request(random: Random, paths: list[Path], headers: Headers) -> Request:
    """Draw a request.

    Args:
        paths: of files and directories that are no models
        headers: which every request has: Host, key
    """
    kind = random.choice((_values, _values, _values, _bytes, _bytes, _headers, _framing, _large, _without_body))
    return kind(random, paths, headers)


def as_json(value: Any) -> bytes:
    """Encode any value, with NaN, infinities and integers of any length."""
    try:
        return json.dumps(value).encode()
    except ValueError:  # Python does not print integers of more than 4,300 digits
        return json.dumps(_shorter(value)).replace(f'"{LONG}"', "9" * 5000).encode()


def _shorter(value: Any) -> Any:
    """Return `value` with a mark in the place of each long integer."""
    if isinstance(value, dict):
        return {key: _shorter(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_shorter(part) for part in value]
    is_long = isinstance(value, int) and abs(value) > 10**4000
    return LONG if is_long else value


def _draw_body(random: Random, paths: list[Path]) -> tuple[str, dict[str, Any]]:
    if random.random() < 0.15:
        return "/update_weights_from_disk", {**UPDATE, "model_path": str(random.choice(paths))}
    return random.choice(BODIES)


def _values(random: Random, paths: list[Path], headers: Headers) -> Request:
    path, body = _draw_body(random, paths)
    damaged = damage_value(random, body)
    if random.random() < 0.3 and isinstance(damaged, dict):
        inner = damaged.get("sampling_params")
        holder = inner if isinstance(inner, dict) and random.random() < 0.7 else damaged
        holder[random.choice(FIELDS)] = hostile_value(random)
    data = as_json(damaged)
    if random.random() < 0.1:  # a key that comes twice
        data = data[:-1] + b"," + as_json({"rid": hostile_value(random)})[1:] if data.endswith(b"}") else data
    return _post("values", path, data, headers)


def _bytes(random: Random, paths: list[Path], headers: Headers) -> Request:
    path, body = _draw_body(random, paths)
    return _post("bytes", path, damage_bytes(random, as_json(body)), headers)


def _headers(random: Random, paths: list[Path], headers: Headers) -> Request:
    path, body = _draw_body(random, paths)
    data = as_json(body)
    changed = list(headers)
    name, value = random.choice(
        (
            ("Content-Type", random.choice((b"text/plain", b"", b"application/x-www-form-urlencoded", b"\xff\xfe"))),
            ("Content-Type", random.choice((b"application/json; charset=\xff", b"application/json;charset=utf-7"))),
            ("Content-Encoding", random.choice((b"gzip", b"deflate", b"br", b"zstd", b"\xff", b"gzip, gzip"))),
            ("Authorization", random.choice((b"Bearer \xff\xfe", b"Bearer", b"Basic eDp5", b"", b"\xed\xa0\x80"))),
            ("Host", random.choice((b"evil.example", b"[::1", b"a b", b"\xff", b"", b"127.0.0.1.evil.example:80"))),
            ("Origin", random.choice((b"http://evil.example", b"null", b"http://127.0.0.1:1", b"\xff"))),
            ("Expect", random.choice((b"100-continue", b"200-ok"))),
            ("X-Any", random.randbytes(random.choice((1, 100, 9000)))),
            ("Cookie", b"a=" + b"b" * random.choice((1, 5000))),
            ("Upgrade", b"websocket"),
            ("Connection", random.choice((b"close", b"upgrade", b"\xff"))),
        )
    )
    if random.random() < 0.5:
        changed = [pair for pair in changed if pair[0] != name]
    changed.append((name, value))
    if value in (b"gzip", b"deflate") and random.random() < 0.5:
        bomb = b"[" * 20_000_000 if random.random() < 0.05 else b"[" * 1_000_000
        data = gzip.compress(bomb, 1) if value == b"gzip" else zlib.compress(bomb, 1)
    return _post(f"header {name}", path, data, changed, is_http=name not in ("X-Any", "Connection", "Upgrade", "Host"))


def _framing(random: Random, paths: list[Path], headers: Headers) -> Request:
    """Say another length than there is, other chunks, another method, target or version; or damage all of it."""
    path, body = _draw_body(random, paths)
    data = as_json(body)
    method = random.choice(
        (b"POST", b"GET", b"PUT", b"DELETE", b"OPTIONS", b"HEAD", b"TRACE", b"BREW", b"post", b"PATCH")
    )
    target = random.choice((path, "/" + random.choice(TEXTS)[:200], path + "?a=%ff%00&" * 3, "*", f"http://evil{path}"))
    lines = [method + b" " + target.encode(errors="replace").replace(b" ", b"%20") + b" HTTP/1.1"]
    lines += [name.encode() + b": " + value for name, value in headers]
    lines.append(b"Content-Type: application/json")
    length = random.choice((str(len(data)), str(len(data) - 1), str(len(data) + 9), "-1", "x", "", "1e3", str(10**30)))
    if random.random() < 0.5:
        lines.append(b"Content-Length: " + length.encode())
        whole = b"\r\n".join(lines) + b"\r\n\r\n" + data
    else:
        size = random.choice(
            (b"%x" % len(data), b"ffffffffffffffffff", b"-1", b"zz", b"", b"%x;ext=%s" % (len(data), b"a" * 99))
        )
        lines.append(
            b"Transfer-Encoding: " + random.choice((b"chunked", b"chunked", b"gzip, chunked", b"identity", b"\xff"))
        )
        end = random.choice((b"0\r\n\r\n", b"0\r\na: b\r\n\r\n", b"", b"0\r\n"))
        whole = b"\r\n".join(lines) + b"\r\n\r\n" + size + b"\r\n" + data + b"\r\n" + end
    if random.random() < 0.3:
        whole = damage_bytes(random, whole)
    return Request(f"framing {method!r} {target[:60]}", path, whole, is_http=False, is_json=False)


def _large(random: Random, paths: list[Path], headers: Headers) -> Request:
    """Send something long. The largest of them are rare, because they take a second to send."""
    count = random.choice((1000, 5000, 20_000, 20_000, 50_000 if random.random() < 0.9 else 2_000_000))
    many: tuple[Callable[[], Any], ...] = (
        lambda: {**GENERATE, "rid": "r" * count},
        lambda: {**GENERATE, "rid": ["r"] * count},
        lambda: {**GENERATE, "input_ids": [1] * count},
        lambda: {**GENERATE, "input_ids": [[1]] * min(count, 50_000)},
        lambda: {**GENERATE, "input_ids": [[]] * count},
        lambda: {**GENERATE, "sampling_params": {**SAMPLING, "stop_token_ids": [2**31 - 1] * count}},
        lambda: {**GENERATE, "sampling_params": [{}] * count},
        lambda: {**GENERATE, "extra_key": ["k"] * count},
        lambda: {str(number): number for number in range(min(count, 50_000))},
        lambda: {**GENERATE, "input_ids": [random.choice(INTEGERS) for _ in range(min(count, 1000))]},
    )
    if random.random() < 0.2:
        opened = random.choice((b"[", b'{"a":', b'{"input_ids":[', b'{"sampling_params":{"a":'))
        return _post("nesting", "/generate", opened * min(count, 50_000), headers)
    return _post(f"large {count}", "/generate", as_json(random.choice(many)()), headers)


def _without_body(random: Random, paths: list[Path], headers: Headers) -> Request:
    if random.random() < 0.5:
        path = random.choice(BODIES)[0]
        return _request("no body", b"POST", path, b"", headers, is_http=True)
    path = random.choice((*GETS, *(path for path, _ in BODIES), "/", "/metrics", "/docs", "/generate/", "/../health"))
    return _request("get", b"GET", path, b"", headers, is_http=True)


def _post(what: str, path: str, body: bytes, headers: Headers, is_http: bool = True) -> Request:
    own = [("Content-Length", str(len(body)).encode())]
    if all(name != "Content-Type" for name, _ in headers):
        own.append(("Content-Type", b"application/json"))
    return _request(f"{what}: {body[:200]!r}", b"POST", path, body, [*headers, *own], is_http)


def _request(what: str, method: bytes, path: str, body: bytes, headers: Headers, is_http: bool) -> Request:
    lines = [method + b" " + path.encode() + b" HTTP/1.1", *(name.encode() + b": " + value for name, value in headers)]
    whole = b"\r\n".join(lines) + b"\r\n\r\n" + body
    return Request(f"{what} to {path}", path.partition("?")[0], whole, is_http, is_json=True)
