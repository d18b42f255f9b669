"""Ask until the answer passes its test, three times at most: an agent as one writes it against the openai package.

rollout: {env: recipes.retry_agent:run}                in the controller's process
rollout: {agent: python recipes/retry_agent.py}        as a program of its own, once for each episode
"""

import asyncio
import json
import sys

from openai import AsyncOpenAI, BadRequestError

TRIES = 3
CLIENT = AsyncOpenAI(base_url="https://set.below", api_key="unused")  # one for all episodes, because it is slow to make


async def solve(client: AsyncOpenAI, question: str, right: str) -> float:
    """Return 1 if the first answer is right, 1/2 for the second, 1/3 for the third."""
    messages = [{"role": "user", "content": question}]
    for number in range(TRIES):
        try:
            answer = await client.chat.completions.create(model="policy", messages=messages)
        except BadRequestError:  # the tokens of the episode are spent
            break
        message = answer.choices[0].message
        if message.content.partition("#")[2] == right:
            return 1 / (number + 1)
        messages += [message, {"role": "user", "content": "?"}]
    return 0.0


async def run(problem, session) -> float:
    async with session.endpoint() as url:
        return await solve(CLIENT.with_options(base_url=url), problem.prompt, problem.answer)


if __name__ == "__main__":
    given = json.load(sys.stdin)
    print(json.dumps({"reward": asyncio.run(solve(AsyncOpenAI(), given["prompt"], given["answer"]))}))
