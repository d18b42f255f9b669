"""Tokenizers with chat templates, made here: one token a character, and one for each mark of a turn."""

import string

from transformers import PreTrainedTokenizerBase

from arl.models.tiny import character_tokenizer

MARKS = ["<|start|>", "<|end|>", "<think>", "</think>"]

SET_NEWLINE = "{%- set newline = '\\n' -%}"  # as it stands, blocks would strip it
TURNS = (
    f"{SET_NEWLINE}"
    "{%- for message in messages -%}"
    "<|start|>{{ message.role }}{{ newline }}{{ message.content }}<|end|>{{ newline }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|start|>assistant{{ newline }}{%- endif -%}"
)
INSTRUCTION = (  # the mark after a question is the whole hand-over, with and without add_generation_prompt
    "{%- for message in messages -%}"
    "{%- if message.role == 'user' -%}<|start|>{{ message.content }}<|end|>"
    "{%- elif message.role == 'assistant' -%}{{ message.content }}"
    "{%- else -%}{{ raise_exception('no system prompt, please') }}{%- endif -%}"
    "{%- endfor -%}"
)
OPEN_TURN = "{%- for message in messages -%}<|start|>{{ message.content }}{%- endfor -%}"
OTHER_HISTORY = (
    "{%- if add_generation_prompt -%}<|start|>answer: {{ messages[-1].content }}<|end|>"
    "{%- else -%}<|start|>{{ messages[-1].content }}<|end|>{%- endif -%}"
)
WITHOUT_QUESTION = "<|start|>hello<|end|>{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}"
BROKEN = "{{ messages[0].content.nothing.at_all }}<|start|>"


def chat_tokenizer(template: str | None) -> PreTrainedTokenizerBase:
    """Make a tokenizer with this chat template. Its eos is the mark that ends a turn."""
    tokenizer = character_tokenizer(string.printable)
    tokenizer.add_special_tokens({"additional_special_tokens": MARKS})
    tokenizer.eos_token = "<|end|>"
    tokenizer.chat_template = template
    return tokenizer
