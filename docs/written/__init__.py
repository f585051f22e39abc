"""What `make docs` writes, a file for each kind of block."""
