from nanovllm.cli import main

main()
