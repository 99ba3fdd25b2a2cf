"""The student's own folder of a lab, and the records in `.lab/`."""
