"""Programs to copy: audits of other frameworks' trainings."""
