# The same commands a person types; `just` alone lists them.
python := env("ARL_PYTHON", ".venv/bin/python")

default:
    @just --list

# What CI checks after the quickstart, in this environment
check: lint types test

lint:
    {{python}} -m ruff check .
    {{python}} -m ruff format --check .

types:
    {{python}} -m mypy

test *args:
    {{python}} -m pytest {{args}}

quickstart *args:
    {{python}} -m arl.cli train recipes/quickstart.yaml {{args}}

# Slow tests, and property tests with five times the examples, which CI runs in addition
thorough *args:
    {{python}} -m pytest -m "slow or sglang or hypothesis" --hypothesis-profile thorough {{args}}

# Hold a change to what the code before it did; `just guards --record` first
guards *args:
    {{python}} -m tests.guards {{args}}

# Tests for which CI has no time
long *args:
    {{python}} -m pytest -m "long and (slow or sglang or not sglang)" {{args}}

# What only a GPU can settle, each at most ten minutes, as JSON into docs/benchmarks/gpu; `just gpu sglang` runs one alone
gpu *checks:
    {{python}} -m tests.gpu_checks {{checks}}

# Tokens per line of code and tuple assignments per 1,000 lines, with the densest files
air *args:
    {{python}} -m tests.air {{args}}
