"""Lab 11's policies as a request router of Ray Serve (given; needs ray)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from nanovllm.cluster.block_index import BlockIndex
from nanovllm.cluster.router import read_body
from nanovllm.cluster.routing import make_policy
from nanovllm.cluster.routing_interface import ReplicaLoad

LOAD_TOKENS = 4096  # what it costs to load a model first, in tokens to compute


class PolicyRouter(RequestRouter):
    """Asks a policy for each call `answer(path, headers, body)` of the engine's deployment.

    What is open on a replica is what Ray counts. A replica that has to load the model first has so
    many tokens more to compute. Which blocks a replica holds is what was sent to it.
    """

    def initialize_state(self, policy: str = "prefix_aware") -> None:
        """By Ray, with the deployment's arguments for its router."""
        self.index = BlockIndex()
        self.policy = make_policy(policy, self.index)

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """The policy's choice first; all others behind it, should it have no room."""
        if pending_request is None or not candidate_replicas:
            return [candidate_replicas]
        _, query = read_body(pending_request.args[2])
        model = pending_request.metadata.multiplexed_model_id
        loads = [self._load(replica, model) for replica in candidate_replicas]
        name = self.policy.choose(query, loads)
        first = [r for r in candidate_replicas if r.replica_id.unique_id == name]
        return [first, [r for r in candidate_replicas if r not in first]]

    def _load(self, replica: RunningReplica, model: str) -> ReplicaLoad:
        requests = self.replica_queue_len_cache.get(replica.replica_id) or 0
        tokens = 0 if model in replica.multiplexed_model_ids else LOAD_TOKENS
        return ReplicaLoad(replica.replica_id.unique_id, requests, tokens)

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """By Ray: what was sent there will be in its prefix cache."""
        _, query = read_body(pending_request.args[2])
        self.index.stored(replica_id.unique_id, query.hashes)

    def update_replicas(self, replicas: Sequence[RunningReplica]) -> None:
        """By Ray: those that are there now; the others hold nothing any more."""
        super().update_replicas(list(replicas))
        there = {replica.replica_id.unique_id for replica in replicas}
        for name in set(self.index.held) - there:
            self.index.cleared(name)
