"""Methods that adapt with labelled source and unlabelled target images together: one file, one method."""
