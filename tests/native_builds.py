"""Builds of the compiled step that are for tests."""

from tests.processes import ROOT

# Matrix tiles, on any processor.
TILES = ("-DNV_EMULATE_DOT", "-DNV_EMULATE_TILES", f"-I{ROOT / 'tests' / 'native'}")
