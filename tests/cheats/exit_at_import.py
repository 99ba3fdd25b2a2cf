"""End the process with success while it is imported."""
import os

os._exit(0)
