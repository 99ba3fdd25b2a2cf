"""What a trace is like and how many servers it needs: `nanovllm trace`, `nanovllm plan`."""
