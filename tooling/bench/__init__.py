"""`./inv bench`: benchmarks in containers, and their reports. One module or package for each benchmark."""
