"""Lab 10 on lab 05's rung: the model and its K and V in several processes."""

import shutil
import tempfile
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from nanovllm.generation.beam import BeamSearchParams, Hypothesis
from nanovllm.generation.request import weight_of
from nanovllm.llm.engine_options import DEFAULT_KV_BYTES
from nanovllm.llm.paged_level import PagedRung
from nanovllm.llm.read_options import OptionError
from nanovllm.llm.scoring import salt_of, scoring
from nanovllm.paging.beam import paged_beam_search
from nanovllm.paging.block_table import blocks_for
from nanovllm.parallel.engine import ParallelEngine
from nanovllm.parallel.errors import ParallelError
from nanovllm.parallel.executor import Executor
from nanovllm.parallel.executor_interface import ExecutorInterface
from nanovllm.parallel.launch import start_processes
from nanovllm.parallel.remote import BEAMS, RemoteBeamCache, RemoteModel
from nanovllm.parallel.shards import query_heads
from nanovllm.parallel.share_spec import ShareSpec
from nanovllm.parallel.stages import layer_ranges


class ParallelRung(PagedRung):
    """Lab 05's rung, whose steps are computed by ranks; they end with it, or with this process."""

    step = "plain: the compiled step knows no shards"

    def prepare(self) -> None:
        """Start the ranks: what cannot be is told before any request. Raises OptionError."""
        self.config = self.options.config(self.max_model_len)
        self.options.check_memory(self.kv_bytes_per_token, cast(RemoteModel, self.model).device)
        try:
            query_heads(self.model.config, self.options.tensor_parallel_size, 0)
            layer_ranges(self.model.config.num_layers, self.options.pipeline_parallel_size)
            self._ready()
        except ParallelError as error:
            raise OptionError(str(error)) from None

    def _ready(self) -> ExecutorInterface:
        """The executor, or a new one if that has died. Raises ExecutorDied."""
        model = cast(RemoteModel, self.model)
        executor = model.executor
        if executor is None or executor.failure is not None:
            meeting = Path(tempfile.mkdtemp(prefix="nanovllm-ranks-"))
            try:
                ranks = start_processes(self._spec(meeting / "meeting"))
                executor = Executor(ranks, timeout=self.options.executor_timeout)
            finally:
                shutil.rmtree(meeting, ignore_errors=True)  # they have met, or never will
            weakref.finalize(self, executor.close)
            model.executor = executor
        return executor

    def _spec(self, meeting: Path) -> ShareSpec:
        longest = blocks_for(self.max_model_len, self.options.block_size)
        model = cast(RemoteModel, self.model)
        return ShareSpec(
            folder=model.folder,
            dtype=weight_of(self.model).dtype,
            device=model.device,
            tensor_parallel_size=self.options.tensor_parallel_size,
            pipeline_parallel_size=self.options.pipeline_parallel_size,
            block_size=self.options.block_size,
            least_blocks=longest,
            most_blocks=self.options.max_num_seqs * longest,
            blocks=model.num_blocks or self.options.num_gpu_blocks_override,
            kv_bytes=self.options.kv_cache_memory_bytes,
            kv_room=None if model.device == "cuda" else DEFAULT_KV_BYTES,
            num_host_blocks=self.options.num_host_blocks(self.kv_bytes_per_token),
            meeting=meeting.as_uri(),
        )

    def make_engine(self) -> ParallelEngine:
        """An engine on the ranks, which hold nothing of an earlier one."""
        made: Any = scoring(ParallelEngine)
        num_host_blocks = self.options.num_host_blocks(self.kv_bytes_per_token)
        return made(
            cast(RemoteModel, self.model),
            self.config,
            executor=self._ready(),
            tokenizer=self.tokenizer,
            block_size=self.options.block_size,
            enable_prefix_caching=self.options.enable_prefix_caching,
            preemption="swap" if num_host_blocks else "recompute",
            num_host_blocks=num_host_blocks,
            swap_by_cost=num_host_blocks > 0,
            salt_of=salt_of,
        )

    def beam_search(
        self, prompt_token_ids: Sequence[int], params: BeamSearchParams
    ) -> list[Hypothesis]:
        """Lab 05's, on the ranks. Raises RequestError."""
        executor = self._ready()
        try:
            return paged_beam_search(
                self.model,
                prompt_token_ids,
                params,
                max_model_len=self.max_model_len,
                block_size=self.options.block_size,
                make_beam_cache=partial(RemoteBeamCache, executor),
            )
        finally:
            if executor.failure is None:
                executor.call("drop", BEAMS)
