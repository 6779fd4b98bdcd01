"""`bench ...`: measures what a job's speed depends on, as one rank."""
