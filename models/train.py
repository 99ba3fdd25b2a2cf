"""Train one of the bundled models: `python -m models.train target`, then `... draft`.

The same seed gives the same data in the same order; a run that was stopped goes on where it was.
"""

import argparse
import json
import os

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Subset
from tqdm import tqdm

from . import tokenizer as shared_tokenizer
from .checkpoint import HERE, load_network, save_model
from .network import Network
from .optimizer import optimizers
from .probe import quick_probe
from .recipe import RECIPES, Recipe
from .rows import Rows

STATE = HERE / ".training"


def weighted_loss(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Return the mean cross-entropy, each token counted by its weight."""
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return (losses * weights.flatten()).sum() / weights.sum()


def distillation_loss(logits: Tensor, teacher: Tensor, weights: Tensor) -> Tensor:
    """Return the divergence from the teacher's distribution, each token counted by its weight."""
    losses = F.kl_div(
        logits.log_softmax(-1), teacher.log_softmax(-1), reduction="none", log_target=True
    ).sum(-1)
    return (losses * weights).sum() / weights.sum()


class Trainer:
    """A network, its optimizers, and how far it has come."""

    def __init__(self, name: str, recipe: Recipe) -> None:
        self.name, self.recipe = name, recipe
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.manual_seed(recipe.seed)
        self.network = Network(recipe.shape).to(self.device)
        self.teacher = load_network("target").to(self.device) if recipe.distil else None
        self.optimizers = optimizers(self.network, recipe.muon_lr, recipe.adam_lr)
        self.rates = [optimizer.param_groups[0]["lr"] for optimizer in self.optimizers]
        self.done = 0
        self.history: list[tuple[int, int, float]] = []
        self.probes: list[dict[str, float]] = []

    def train_on(self, ids: Tensor, weights: Tensor, positions: Tensor) -> float:
        """Take one step and return the loss."""
        ids, weights, positions = (t.to(self.device) for t in (ids, weights, positions))
        logits = self.network(ids[:, :-1], positions)
        if self.teacher is not None and self.done >= self.recipe.distil_from:
            with torch.no_grad():
                teacher = self.teacher(ids[:, :-1], positions)
            loss = distillation_loss(logits, teacher, weights[:, 1:])
        else:
            loss = weighted_loss(logits, ids[:, 1:], weights[:, 1:])
        loss.backward()
        for optimizer, rate in zip(self.optimizers, self.rates):
            optimizer.param_groups[0]["lr"] = rate * self.recipe.rate(self.done)
            optimizer.step()
            optimizer.zero_grad()
        self.done += 1
        return loss.item()

    def save(self) -> None:
        """Write the model in its final form, and what is needed to go on."""
        save_model(self.network, HERE / self.name)
        STATE.mkdir(exist_ok=True)
        state = {
            "network": self.network.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "done": self.done,
            "history": self.history,
            "probes": self.probes,
        }
        partial = STATE / f"{self.name}.partial"
        torch.save(state, partial)
        os.replace(partial, STATE / f"{self.name}.pt")
        self._write_log()

    def resume(self) -> None:
        """Go on from the last save, if there is one."""
        path = STATE / f"{self.name}.pt"
        if not path.exists():
            return
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.network.load_state_dict(state["network"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"]):
            optimizer.load_state_dict(saved)
        self.done = state["done"]
        self.history = [tuple(entry) for entry in state["history"]]
        self.probes = state["probes"]

    def _write_log(self) -> None:
        path = HERE / "training_log.json"
        log = json.loads(path.read_text()) if path.exists() else {}
        log[self.name] = {
            "loss": [[step, tokens, round(loss, 4)] for step, tokens, loss in self.history],
            "probes": self.probes,
        }
        path.write_text(json.dumps(log) + "\n")


def train(name: str, probe_every: int = 200) -> None:
    """Train to the end of the recipe, saving and probing on the way."""
    trainer = Trainer(name, RECIPES[name])
    trainer.resume()
    recipe, tokenizer = trainer.recipe, shared_tokenizer.load()
    rows = Rows(recipe, tokenizer, recipe.shape.context)
    ahead = Subset(rows, range(trainer.done, len(rows)))
    batches = DataLoader(ahead, batch_size=None, num_workers=1, prefetch_factor=4)
    tokens = trainer.history[-1][1] if trainer.history else 0
    smooth = trainer.history[-1][2] if trainer.history else None
    with tqdm(
        total=len(rows), initial=trainer.done, desc=name, unit="step", mininterval=5.0
    ) as bar:
        for ids, weights, positions in batches:
            loss = trainer.train_on(ids, weights, positions)
            smooth = loss if smooth is None else 0.95 * smooth + 0.05 * loss
            tokens += positions.numel()
            bar.update()
            speed = (bar.format_dict["rate"] or 0.0) * positions.numel()
            bar.set_postfix(loss=f"{smooth:.3f}", tokens_per_s=f"{speed:.0f}", refresh=False)
            if trainer.done % 10 == 0:
                trainer.history.append((trainer.done, tokens, smooth))
            if trainer.done % probe_every == 0 or trainer.done == len(rows):
                trainer.probes.append(
                    {"step": trainer.done} | quick_probe(trainer.network, tokenizer)
                )
                bar.write(json.dumps(trainer.probes[-1]))
            if trainer.done % 100 == 0 or trainer.done == len(rows):
                trainer.save()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=list(RECIPES))
    parser.add_argument("--probe-every", type=int, default=200, metavar="STEPS")
    arguments = parser.parse_args()
    train(arguments.model, arguments.probe_every)


if __name__ == "__main__":
    main()
