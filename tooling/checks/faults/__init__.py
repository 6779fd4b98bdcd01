"""`./inv dev faults`: faults in running jobs, and how the jobs end and resume. Start with `reliability`."""
