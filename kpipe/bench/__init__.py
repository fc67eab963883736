"""`kpipe bench`: how good a policy version is on problems, measured and compared."""
