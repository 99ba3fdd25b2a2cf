"""The students' repository: built from the course, without what students must not see."""
