"""Lab 11's policies as a request router of Ray Serve (given)."""

from __future__ import annotations

from typing import Any

from nanovllm.cluster.block_index import BlockIndex
from nanovllm.cluster.ray_parts import Candidate, Memory, rank_replicas
from nanovllm.cluster.router import read_body
from nanovllm.cluster.routing import make_policy
from nanovllm.cluster.routing_interface import ReplicaLoad


class PolicyRouter:
    """Asks a policy for each call `answer(path, headers, body)` of the engine's deployment.

    To be mixed into Ray's RequestRouter, whose counts and replicas it uses. What is open on a
    replica is what Ray counts; tokens that wait there are not known. Which blocks and models a
    replica holds is what was sent to it.
    """

    replica_queue_len_cache: Any  # Ray's

    def initialize_state(self, policy: str, models_per_replica: int, several: bool) -> None:
        """By Ray, with the deployment's arguments for its router. several: models are served."""
        self.index, self.there = BlockIndex(), set[str]()
        self.policy = make_policy(policy, self.index)
        self.memory, self.several = Memory(models_per_replica), several

    async def choose_replicas(
        self,
        candidate_replicas: list[Any],
        pending_request: Any = None,
    ) -> list[list[Any]]:
        """All of them by rank."""
        if pending_request is None:
            return [candidate_replicas]
        _, query = read_body(pending_request.args[2])
        model = pending_request.metadata.multiplexed_model_id if self.several else ""
        named = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        candidates = [self._candidate(name, replica) for name, replica in named.items()]
        ranks = rank_replicas(self.policy, query, candidates, model)
        return [[named[name] for name in rank] for rank in ranks]

    def _candidate(self, name: str, replica: Any) -> Candidate:
        open_there = self.replica_queue_len_cache.get(replica.replica_id) or 0
        load = ReplicaLoad(name, open_there)
        return Candidate(load, replica.max_ongoing_requests, self.memory.models(name))

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        """By Ray: what was sent there will be there."""
        _, query = read_body(pending_request.args[2])
        self.index.stored(replica_id.unique_id, query.hashes)
        self.memory.sent(replica_id.unique_id, pending_request.metadata.multiplexed_model_id)

    def update_replicas(self, replicas: list[Any]) -> None:
        """By Ray: those that are there now; the others hold nothing any more."""
        super().update_replicas(replicas)  # pyright: ignore[reportAttributeAccessIssue]
        there = {replica.replica_id.unique_id for replica in replicas}
        for name in self.there - there:
            self.index.cleared(name)
            self.memory.lost(name)
        self.there = there
