"""`python -m monitoring`: write the files of this folder anew."""

from monitoring.files import HERE, files

for name, text in files().items():
    (HERE / name).parent.mkdir(exist_ok=True)
    (HERE / name).write_text(text, encoding="utf-8")
