"""What `nanovllm bench` measures: this engine alone, against others, and lab by lab."""
