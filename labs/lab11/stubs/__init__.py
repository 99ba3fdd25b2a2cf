"""Lab 11: several engines that serve as one."""
