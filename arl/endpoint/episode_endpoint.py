"""Answer the requests of one episode's agent. Every token that they sample is in the episode's record.

    async with open_endpoint(session) as url:
        client = AsyncOpenAI(base_url=url, api_key="unused")
        await client.chat.completions.create(model="policy", messages=[…])

A request that cannot be served is refused, and the episode goes on. A client that disconnects aborts its request; what
was sampled stays in the record. A failure of the engine ends the episode, whatever its agent makes of the answer.
"""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import msgspec

from arl.clock import VirtualLoop
from arl.endpoint.agent_server import serve
from arl.endpoint.openai_answers import CHAT, TEXT, Json, answer_of
from arl.endpoint.openai_requests import (
    CONTEXT_EXCEEDED,
    ChatRequest,
    CompletionRequest,
    RefusedRequest,
    SamplingRequest,
    read_request,
)
from arl.errors import InputError, RunError
from arl.rollout.conversation import Conversation, Reply
from arl.rollout.env import Session

ENDED = "the episode has ended"


@contextlib.asynccontextmanager
async def open_endpoint(session: Session) -> AsyncIterator[str]:
    """Serve an episode to its agent, and yield the base URL. When the context ends, open requests are aborted.

    Raises:
        RunError: the run is in virtual time, or a request failed in the engine.
    """
    if isinstance(asyncio.get_running_loop(), VirtualLoop):
        raise RunError("session.endpoint() in virtual time: there are no sockets; use `world: wall`")
    try:
        async with asyncio.timeout(None) as scope:
            episode = EpisodeEndpoint(session, scope)
            async with serve(episode.chat, episode.complete) as url:
                try:
                    yield url
                finally:
                    await episode.close()
    except Exception:  # perhaps of the agent, which was interrupted because of the failure
        if episode.failure is None:
            raise
    if episode.failure is not None:
        raise episode.failure


class EpisodeEndpoint:
    """Answer requests by the policy.

    Args:
        scope: around the agent, which is interrupted when a request fails in the engine.
    """

    def __init__(self, session: Session, scope: asyncio.Timeout) -> None:
        self._session = session
        self._conversation = Conversation(session)
        self._scope = scope
        self._open: set[asyncio.Task[Reply]] = set()
        self._is_closing = False
        self.failure: BaseException | None = None

    async def close(self) -> None:
        """Abort the requests that are open, and refuse others."""
        self._is_closing = True
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(self._open)

    async def chat(self, body: bytes) -> tuple[ChatRequest, Json]:
        """Return a request to /chat/completions, and the answer.

        Raises:
            RefusedRequest: it cannot be served.
        """
        request = read_request(body, ChatRequest, self._session.sampling.temperature)
        messages = msgspec.to_builtins(request.messages)
        tools = () if request.tool_choice == "none" else request.tools or ()
        reply = functools.partial(self._conversation.reply, messages, tools)
        replies = await self._sample(reply, request)
        return request, answer_of(CHAT, replies, self._session.codec, bool(request.logprobs))

    async def complete(self, body: bytes) -> tuple[CompletionRequest, Json]:
        """Return a request to /completions, and the answer.

        Raises:
            RefusedRequest: it cannot be served.
        """
        request = read_request(body, CompletionRequest, self._session.sampling.temperature)
        replies = await self._sample(functools.partial(self._conversation.go_on, request.prompt), request)
        return request, answer_of(TEXT, replies, self._session.codec, request.logprobs is not None)

    async def _sample(self, reply: Callable[..., Coroutine[Any, Any, Reply]], request: SamplingRequest) -> list[Reply]:
        """Return the replies to a request, which are sampled at the same time.

        Raises:
            RefusedRequest: the agent asks for what cannot be, the episode has ended or has no room for a token, or the
                engine has failed.
        """
        if self._is_closing:
            raise RefusedRequest(ENDED, 410)
        turns = [reply(limit=request.limit, stop=request.stops) for _ in range(request.n or 1)]
        tasks = [asyncio.create_task(turn) for turn in turns]
        for task in tasks:
            self._open.add(task)
            task.add_done_callback(self._ended)
        try:
            await asyncio.wait(tasks)
        finally:
            for task in tasks:
                task.cancel()  # if the client has gone
        error = next((error for task in tasks if not task.cancelled() and (error := task.exception())), None)
        if error is not None:
            raise RefusedRequest(f"{error}", 400 if isinstance(error, InputError) else 500) from error
        if any(task.cancelled() for task in tasks):
            raise RefusedRequest(ENDED, 410)
        replies = [task.result() for task in tasks]
        if not any(reply.completion.token_ids for reply in replies):
            raise RefusedRequest(
                "the policy can take no further turn: the model's maximum context length is exceeded, or the episode's "
                "budget of rollout.max_new_tokens is spent",
                code=CONTEXT_EXCEEDED,
            )
        return replies

    def _ended(self, task: asyncio.Task[Reply]) -> None:
        """Forget a turn, and interrupt the agent if it failed otherwise than by the agent's fault."""
        self._open.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None or isinstance(error, InputError):
            return
        self.failure = self.failure or error
        if not self._is_closing and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time())
