"""Everything student-facing, built from `solutions/`: stubs, notebooks, known mistakes."""
