"""`make pictures`: the README's two pictures, made anew."""

from __future__ import annotations

from docs.dashboard_picture import take
from docs.watch_recording import moving, record
from grader.course.paths import ROOT

PICTURES = ROOT / "docs" / "pictures"


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / "watch.svg").write_text(moving(record()), encoding="utf-8")
    take(PICTURES / "dashboard.png")
    for path in sorted(PICTURES.iterdir()):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
