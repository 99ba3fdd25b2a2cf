"""A scheduler without a policy: in the order of priority and arrival, first come first computed."""

from nanovllm.batching.plan import Chunk, Plan
from nanovllm.batching.request import Request, Status
from nanovllm.batching.scheduler_base import SchedulerBase


class Scheduler(SchedulerBase):
    """Everybody who runs goes on; whoever finds no room sends the last who came away."""

    def __init__(self, *named: object, **more: object) -> None:
        super().__init__(*named, **more)
        self.waiting: list[Request] = []
        self.running: list[Request] = []

    def queue(self) -> list[Request]:
        """Who waits, in order."""
        return sorted(self.waiting, key=lambda r: (r.priority, r.number))

    def add(self, request: Request) -> None:
        """One more."""
        self.refuse_unfit(request)
        self.waiting.append(request)

    def schedule(self) -> Plan:
        """One chunk for each who runs, while the budget lasts."""
        chunks, admitted, away = [], [], []
        for request in list(self.running):
            while request in self.running and not self.store.reserve(request, request.remaining):
                away.append(self.running.pop())
                self.store.suspend(away[-1])
                away[-1].move_to(Status.PREEMPTED, self.clock())
                away[-1].num_computed_tokens, away[-1].num_preemptions = 0, 1
        for request in [] if away else self.queue():
            if len(self.running) == self.max_num_seqs or not self.store.can_admit(request):
                break
            known = self.store.admit(request)
            if not self.store.reserve(request, request.remaining - known):
                self.store.suspend(request)
                break
            request.num_computed_tokens = known
            now = self.clock()
            request.move_to(Status.SCHEDULED, now)
            self.waiting.remove(request)
            self.running.append(request)
            admitted.append(request)
        self.waiting += away
        left = limit = self.budget.limit
        for request in self.running:
            if length := min(left, request.remaining):
                begin = request.num_computed_tokens
                chunks.append(Chunk(request, begin, length, request.num_tokens))
                left -= length
        return Plan(tuple(chunks), tuple(admitted), tuple(away), limit)

    def update(self, plan: Plan) -> None:
        """Count what was computed."""
        for chunk in plan.chunks:
            request = chunk.request
            request.num_computed_tokens += chunk.length
            request.move_to(Status.RUNNING, self.clock())

    def end(self, request: Request, status: Status) -> None:
        """Let go of one."""
        home, leave = self.waiting, self.store.forget
        if request not in home:
            home, leave = self.running, self.store.release
        home.remove(request)
        leave(request)
        request.move_to(status, now=self.clock())
