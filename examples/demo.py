"""What `make demo` runs: a GPT is trained on the device and checked against the CPU, then a language model answers.

    python -m examples.demo --prompt "What is the capital of France?"

Exits with 1 if a loss on the device differs from the CPU's by so much as one bit.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
from rich.console import Console
from rich.table import Table

from examples.train_gpt import Run, TrainConfig, Trainer, train

CONSOLE = Console()


def compare(device: str, ours: Run, reference: Run) -> bool:
    """Print the losses of both runs side by side and the ratio of their speeds; return whether all are bit-equal."""
    table = Table("step", f"loss on {device}", "loss on cpu", "bit-equal")
    # Each loss is an fp32 number that Python holds exactly, so == compares the bits.
    equal = [a == b for a, b in zip(ours.losses, reference.losses, strict=True)]
    for step, (a, b, same) in enumerate(zip(ours.losses, reference.losses, equal, strict=True)):
        table.add_row(str(step), f"{a:.9f}", f"{b:.9f}", "yes" if same else "[red]NO[/red]")
    CONSOLE.print(table)
    ratio = ours.tokens_per_second / reference.tokens_per_second
    print(f"speed {device} / cpu: {ratio:.2f} (wall, {len(equal)} steps, {torch.get_num_threads()} threads)")
    verdict = "bit-equal" if all(equal) else "NOT bit-equal"
    print(f"losses in fp32 on {device} and cpu: {verdict} ({sum(equal)} of {len(equal)} steps)")
    return all(equal)


def train_and_compare(device: str, steps: int, compared: int) -> bool:
    """Train for `steps` steps on `device`, repeat the first `compared` on the CPU; return whether the losses agree."""
    config = TrainConfig(steps=steps)
    trainer = Trainer(config, torch.device(device))
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    CONSOLE.rule(f"1. A byte-level GPT ({parameters / 1e6:.1f} M parameters) learns the standard library on {device}")
    before = trainer.validation_loss()
    first = train(trainer, compared)
    train(trainer, steps)
    print(f"validation loss {before:.4f} -> {trainer.validation_loss():.4f} nats per byte; a sample:")
    print(trainer.sample("def ", 120))

    CONSOLE.rule(f"2. The first {compared} steps again on cpu")
    reference = Trainer(config, torch.device("cpu"))
    reference.validation_loss()  # as above, so that neither run has to pay for its first forward pass
    return compare(device, first, train(reference, compared))


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", default="What is the capital of France?", help="what to ask the language model")
    parser.add_argument("--device", default="neuron")
    parser.add_argument("--steps", type=int, default=120, help="training steps on the device")
    parser.add_argument("--compare-steps", type=int, default=10, help="how many of them are repeated on the CPU")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--skip-chat", action="store_true", help="leave the language model out")
    args = parser.parse_args(argv)
    if not 1 <= args.compare_steps <= args.steps:
        parser.error("--compare-steps must be between 1 and --steps")

    start = time.perf_counter()
    equal = train_and_compare(args.device, args.steps, args.compare_steps)
    if not args.skip_chat:
        from examples import chat  # here, since importing transformers takes seconds

        CONSOLE.rule(f"3. SmolLM2-135M-Instruct answers on {args.device}")
        model, tokenizer = chat.load(torch.device(args.device))
        print(f"> {args.prompt}")
        chat.answer(model, tokenizer, args.prompt, args.max_new_tokens)
    print(f"demo took {time.perf_counter() - start:.0f} s")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
