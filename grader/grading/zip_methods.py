"""How a zip may be packed that somebody hands in."""

from __future__ import annotations

import zipfile

# Of what is packed in another way, Python unpacks all that was read, and cuts it off only then.
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
