"""Never come back from the import."""
while True:
    pass
