"""From a row to its wheels: resolved, locked with hashes, fetched with the host's pip; their vulnerabilities.

Start with `fetch`.
"""
