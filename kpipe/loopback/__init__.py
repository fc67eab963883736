"""A coder's and a policy's server that runs on this machine: for demos, and as the tests' double of paid ones."""
