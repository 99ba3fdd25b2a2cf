"""nbgrader's view of the course: what instructors edit, what students get."""

from pathlib import Path

c = get_config()

c.CourseDirectory.root = str(Path(__file__).resolve().parent)
c.CourseDirectory.course_id = "nanovllm-labs"
c.CourseDirectory.source_directory = "solutions/notebooks"
c.CourseDirectory.release_directory = "notebooks"
