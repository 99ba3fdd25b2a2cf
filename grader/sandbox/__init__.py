"""Where code of strangers runs: levels of confinement, and the forkserver behind them."""
