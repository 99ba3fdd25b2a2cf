"""Token trees: several continuations verified in one forward; each node sees its ancestors alone.

Source: Miao et al., "SpecInfer", 2024, section 4. On the plain path, one request at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nanovllm.model.attention import attention
from nanovllm.model.cache import ContiguousCache
from nanovllm.model.transformer import Transformer

ROOT = -1


@dataclass(frozen=True)
class TokenTree:
    """Guesses behind one known token: parents[i] < i is a node, or ROOT for the known token.

    >>> tree = TokenTree((5, 6, 7), (ROOT, ROOT, 0))
    >>> tree.depths, tree.children(ROOT)
    ([1, 1, 2], [0, 1])
    """

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]

    @property
    def depths(self) -> list[int]:
        """How far behind the known token each node would stand: children of the root at 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return depths

    def children(self, node: int) -> list[int]:
        """The nodes behind this one, in their order; those of ROOT follow the known token."""
        return [i for i, parent in enumerate(self.parents) if parent == node]

    def mask(self, stored: int) -> Bool[Tensor, "M+1 S"]:
        """Who may look at whom: rows are the known token and the M nodes, columns all S places.

        `stored` places come first, then the known token, then the nodes.

        >>> TokenTree((5, 6), (ROOT, ROOT)).mask(1).int().tolist()
        [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 1]]
        """
        raise NotImplementedError("lab08 task 5: TokenTree.mask")

    def positions(self, stored: int) -> Int[Tensor, " M+1"]:
        """Where each would stand in the text: the known token, then the nodes, by depth.

        `stored` tokens stand before the known one.

        >>> TokenTree((5, 6, 7), (ROOT, ROOT, 0)).positions(9).tolist()
        [9, 10, 10, 11]
        """
        raise NotImplementedError("lab08 task 5: TokenTree.positions")

    def walk(self, likeliest: Sequence[int]) -> tuple[list[int], list[int]]:
        """The nodes that stand, from the root on, and the tokens they come to: one more than nodes.

        likeliest[0] is the target's token behind the known one, likeliest[i + 1] behind node i. A
        node stands if its token is the target's behind its parent, and its parent stands; of two
        such siblings the first stands. The last token is the target's behind the last node.

        >>> TokenTree((5, 6, 7), (ROOT, ROOT, 1)).walk([6, 0, 7, 9])
        ([1, 2], [6, 7, 9])
        """
        raise NotImplementedError("lab08 task 5: TokenTree.walk")


def verify_tree(
    model: Transformer, cache: ContiguousCache, known: int, tree: TokenTree
) -> list[int]:
    """The greedy tokens that a tree is worth; one forward of 1 + M tokens.

    cache: K and V of all tokens before the known one, and room for 1 + M more. Afterwards it has
    those of the known token and of the nodes that stand, in the order of the text, and nothing
    else; so the last of the tokens is the next call's known one. Layers with a window
    (`cache.config.window(layer)`) see by positions, as in lab 02. The tree may be empty.
    """
    raise NotImplementedError("lab08 task 5: verify_tree")


def best_tree(
    logits_behind: Callable[[tuple[int, ...]], Tensor], nodes: int, width: int = 3, depth: int = 8
) -> TokenTree:
    """The `nodes` likeliest guesses of a draft, likeliest first, as a tree.

    A guess counts by the product of the probabilities along its path: of all the paths whose
    every token is among the `width` likeliest at its place, with at most `depth` tokens, those
    with the largest products. logits_behind(path) gives the draft's logits [V] behind the tokens
    of a path (empty: behind the known token); it is asked at most once for each path that can be
    continued, and only for the empty path and those in the tree. Fewer than `nodes` where no more
    are to be had; whether paths of probability 0 count is left open.
    """
    raise NotImplementedError("lab08 task 5: best_tree")
