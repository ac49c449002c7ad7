"""What users test their limited code with: the manual clock, the assertions, the fixtures."""
