"""What a step costs when a model is cut over ranks: messages, products, memory."""

from dataclasses import dataclass
from typing import NamedTuple

from nanovllm.batching.plan import Plan
from nanovllm.model.accounting import kv_bytes_per_token, matmul_parameters
from nanovllm.model.config import ModelConfig
from nanovllm.parallel.errors import ParallelError
from nanovllm.parallel.hardware import Cluster, Link


def send_seconds(link: Link, nbytes: float) -> float:
    """Seconds until a message of so many bytes has arrived: latency, then its bytes.

    >>> send_seconds(Link(latency=2.0, bytes_s=100.0), 50)
    2.5
    """
    ### BEGIN SOLUTION
    return link.latency + nbytes / link.bytes_s
    ### END SOLUTION


def all_gather_seconds(link: Link, nbytes: float, size: int) -> float:
    """Seconds of a ring all-gather after which each of `size` ranks holds `nbytes`.

    Each rank sends a run of an nth of the bytes n - 1 times; a run goes when the one before it
    has arrived. One rank alone sends nothing.

    >>> all_gather_seconds(Link(2.0, 100.0), 200, size=4), all_gather_seconds(Link(2.0, 1.0), 9, 1)
    (7.5, 0.0)
    """
    ### BEGIN SOLUTION
    return (size - 1) * send_seconds(link, nbytes / size)
    ### END SOLUTION


def all_reduce_seconds(link: Link, nbytes: float, size: int) -> float:
    """Seconds of task 1's ring all-reduce of `nbytes` over `size` ranks.

    Its reduce-scatter sends as many runs, of the same bytes, as its all-gather; adding is free.

    >>> all_reduce_seconds(Link(2.0, 100.0), 200, size=4)
    15.0
    """
    ### BEGIN SOLUTION
    return 2 * all_gather_seconds(link, nbytes, size)
    ### END SOLUTION


@dataclass(frozen=True)
class Layout:
    """How a model is cut: `tp` ranks share each layer, `pp` stages of layers follow one another.

    A step goes through the stages in so many micro-batches.
    """

    tp: int = 1
    pp: int = 1
    micro_batches: int = 1

    @property
    def cards(self) -> int:
        return self.tp * self.pp


class Phase(NamedTuple):
    """Half a layer on one rank: seconds of products, then seconds of the all-reduce behind them."""

    compute: float
    communicate: float


@dataclass(frozen=True)
class ParallelCost:
    """Seconds and bytes of a model cut over a cluster; `simulate` takes it in place of a StepCost.

    Every stage is priced like the one with most layers. Norms, biases, learned positions, the
    operations of attention, the lookup of embeddings and the driver's own work are left out.
    """

    config: ModelConfig
    cluster: Cluster
    layout: Layout = Layout()
    dtype_bytes: int = 2

    @property
    def layers(self) -> int:
        """Layers of the largest stage: L / pp, rounded up."""
        return -(-self.config.num_layers // self.layout.pp)

    @property
    def layer_weights(self) -> float:
        """Weights of one layer that a rank has: an equal share of its matrices."""
        return matmul_parameters(self.config) / self.config.num_layers / self.layout.tp

    def product_seconds(self, weights: float, rows: int, cache_bytes: float = 0.0) -> float:
        """Seconds of products of `rows` vectors with so many weights (lab 02's `step_seconds`).

        The larger of two times: to read the weights and the bytes of cache, and to compute (2
        operations a weight and row).
        """
        card = self.cluster.card
        read = (weights * self.dtype_bytes + cache_bytes) / card.bytes_s
        return max(read, 2 * weights * rows / card.flops_s)

    def _hidden(self, tokens: int) -> int:
        """Bytes of the hidden state of so many tokens."""
        return tokens * self.config.hidden_size * self.dtype_bytes

    def ends_seconds(self, tokens: int, rows: int) -> float:
        """What a step costs before its first layer and behind its last one, once.

        The all-reduce of the embeddings [tokens, E]; the product of `rows` with the rank's share
        of a table; the all-gather of the logits [rows, V].
        """
        config, tp = self.config, self.layout.tp
        link = self.cluster.link(tp)
        product = self.product_seconds(config.vocab_size * config.hidden_size / tp, rows)
        gather = all_gather_seconds(link, rows * config.vocab_size * self.dtype_bytes, tp)
        return all_reduce_seconds(link, self._hidden(tokens), tp) + product + gather

    def weight_bytes(self) -> float:
        """Bytes of weights on one rank: `layer_weights` of its layers, and its share of tables.

        A table has V x E weights and is cut over tp. One stage has two, embedding and logits, or
        one if they are tied; with more stages the first and the last have one each, tied or not.
        """
        config, layout = self.config, self.layout
        tables = 1 if config.tie_embeddings or layout.pp > 1 else 2
        table = config.vocab_size * config.hidden_size / layout.tp
        return self.dtype_bytes * (self.layers * self.layer_weights + tables * table)

    def kv_bytes(self) -> float:
        """Bytes of K and V that a token takes on one rank: those of its layers and its heads.

        Priced are G / tp key/value heads, rounded up: at least one, however many ranks there are.

        >>> from nanovllm.parallel.hardware import CARDS, LINKS
        >>> config = ModelConfig("llama", 9, 4, 6, 4, 2, 2, 6, 16)
        >>> cluster = Cluster(CARDS["l4"], LINKS["pcie4"], LINKS["100gbe"])
        >>> [ParallelCost(config, cluster, Layout(tp, pp)).kv_bytes() for tp, pp in
        ...  ((1, 1), (2, 1), (4, 1), (1, 4))]
        [96.0, 48.0, 48.0, 32.0]
        """
        ### BEGIN SOLUTION
        config = self.config
        heads = -(-config.num_kv_heads // self.layout.tp)
        share = heads / config.num_kv_heads * self.layers / config.num_layers
        return kv_bytes_per_token(config, self.dtype_bytes) * share
        ### END SOLUTION

    def capacity(self) -> int:
        """Tokens whose K and V fit beside the weights in a card's memory; 0 if those do not fit."""
        return max(int((self.cluster.card.memory - self.weight_bytes()) // self.kv_bytes()), 0)

    def phase(self, tokens: int, places: float) -> Phase:
        """Half a layer (attention or MLP, priced alike) of a step that reads `places` of cache.

        compute: `product_seconds` of the rank's weights of half a layer, with half of the layer's
        `kv_bytes` for each place. communicate: the all-reduce of [tokens, E] among tp ranks.
        """
        ### BEGIN SOLUTION
        tp = self.layout.tp
        cache = places * self.kv_bytes() / self.layers
        compute = self.product_seconds(self.layer_weights / 2, tokens, cache / 2)
        return Phase(compute, all_reduce_seconds(self.cluster.link(tp), self._hidden(tokens), tp))
        ### END SOLUTION

    def tick_seconds(self, tokens: int, places: float) -> float:
        """Seconds in which a stage computes one micro-batch and hands its hidden state on.

        Two phases a layer; with more than one stage, a message of [tokens, E] over the link of all
        tp x pp ranks.
        """
        ### BEGIN SOLUTION
        seconds = 2 * self.layers * sum(self.phase(tokens, places))
        if self.layout.pp > 1:
            seconds += send_seconds(self.cluster.link(self.layout.cards), self._hidden(tokens))
        return seconds
        ### END SOLUTION

    def seconds(self, tokens: int, places: float, rows: int) -> float:
        """Seconds of a step that computes `tokens`, reads `places` and needs logits of `rows`.

        m micro-batches, but never more than tokens, pass pp stages in m + pp - 1 ticks. Each has
        tokens / m of the tokens, rounded up, and an mth of the places. A step without tokens
        takes no time.
        """
        ### BEGIN SOLUTION
        if not tokens:
            return 0.0
        m = min(self.layout.micro_batches, tokens)
        ticks = m + self.layout.pp - 1
        return ticks * self.tick_seconds(-(-tokens // m), places / m) + self.ends_seconds(
            tokens, rows
        )
        ### END SOLUTION

    def of_plan(self, plan: Plan) -> float:
        """Seconds of a plan: a chunk reads all places up to its end; rows are those that draw.

        Only a chunk that completes its request's tokens needs logits.
        """
        places = sum(chunk.end for chunk in plan.chunks)
        rows = sum(chunk.completes for chunk in plan.chunks)
        return self.seconds(plan.num_tokens, places, rows)


def best_layout(
    config: ModelConfig,
    cluster: Cluster,
    cards: int,
    tokens: int,
    places: int,
    rows: int,
    dtype_bytes: int = 2,
) -> Layout:
    """The layout in which such a step takes the fewest seconds, on at most so many cards.

    Tried are all tp that H is a multiple of, with 1 to L stages and 1 to 4 x pp micro-batches (one
    if there is one stage). The places must fit into `capacity`. Of equally fast ones it takes one
    with the fewest cards, whichever.

    Raises:
        ParallelError: the model and the places fit into none of them.
    """
    costs = [
        ParallelCost(config, cluster, Layout(tp, pp, m), dtype_bytes)
        for tp in range(1, cards + 1)
        if config.num_heads % tp == 0
        for pp in range(1, min(cards // tp, config.num_layers) + 1)
        for m in range(1, 4 * pp + 1 if pp > 1 else 2)
    ]
    fitting = [cost for cost in costs if cost.capacity() >= places]
    if not fitting:
        raise ParallelError(
            f"{places} tokens of K and V do not fit beside the model on {cards} cards of "
            f"{cluster.card.memory / 1e9:g} GB; use more cards or fewer tokens."
        )
    best = min(fitting, key=lambda c: (c.seconds(tokens, places, rows), c.layout.cards))
    return best.layout
