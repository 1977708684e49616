"""Models of other libraries: their files, their names for tensors, their settings. None of the libraries is needed."""
